"""What waiting gangs cost, and how soon they are woken: figures are printed, goals beside them."""

import statistics
from datetime import datetime

import pytest

from hack.fleet import pki
from hack.fleet.audit import AuditEvent
from hack.fleet.fleet import Cluster, wait_for
from hack.fleet.spec import NodeShape
from tests.fleet.conftest import SetNodes
from tests.fleet.gang_stories import (
    POD_GROUPS,
    delete_pod,
    filter_calls,
    patch,
    pod_condition,
    post_gang,
    stream,
    wait_refused,
    wait_seconds,
    wait_state,
)
from tests.fleet.stories import (
    GENEROUS,
    Json,
    Stopwatch,
    bound,
    gang_pod,
    plain_pod,
    pod_group,
    posting,
    wait_landed,
)

SCHEDULER_USER = pki.USERS[pki.SCHEDULER][0]
SECONDS = 4.0
RELEASED = "did not appear in time"


# --- a hopeless gang costs little --------------------------------------------------------------------------------


def delays(events: list[AuditEvent], prefix: str) -> list[float]:
    """Seconds from each pod's creation to its Binding, by the API server's clock."""
    created = {e.name: e for e in events if e.target == "pods" and e.verb == "create" and e.name.startswith(prefix)}
    return sorted(
        (datetime.fromisoformat(e.completed) - datetime.fromisoformat(created[e.name].time)).total_seconds()
        for e in events
        if e.target == "pods/binding" and e.code == 201 and e.name in created
    )


@pytest.mark.parametrize(
    ("waiting", "per_second"),
    [(50, 10), pytest.param(500, 50, marks=pytest.mark.long), pytest.param(500, 10, marks=pytest.mark.long)],
)
@pytest.mark.parametrize("why", ["does not fit", "incomplete"])
def test_a_hopeless_gang_costs_little(
    member1: Cluster, namespace: str, member_nodes: SetNodes, waiting: int, per_second: int, why: str
) -> None:
    """Waiting pods are asked about again for every Binding in the cluster; their text stays the same meanwhile."""
    member_nodes(member1=[NodeShape(count=4, cpu="1000", gpus=0, pods=10_000)])
    cpu, minimum = ("100", waiting) if why == "does not fit" else ("1", waiting + 1)
    post_gang(member1, namespace, "gang", waiting, minimum=minimum, cpu=cpu)
    names = [f"gang-{index}" for index in range(waiting)]
    wait_refused(member1, namespace, *names, timeout=2 * GENEROUS)
    wait_state(member1, "blocked" if why == "does not fit" else "incomplete")

    def small(number: int) -> Json:
        return plain_pod(namespace, f"small-{number}", cpu="10m")

    def messages() -> dict[str, str]:
        return {name: pod_condition(member1, namespace, name)["message"] for name in names}

    # Those that were held at the barrier still show why they were released; the next Binding anywhere has them asked
    # again, and from then on their text is the one of waiting.
    with stream(member1, lambda number: plain_pod(namespace, f"warm-{number}", cpu="10m"), every=0.2):
        wait_for("their text settles", lambda: len(set(messages().values())) == 1 and RELEASED not in str(messages()),
                 2 * GENEROUS, interval=0.3)  # fmt: skip
    texts = messages()

    since, before = member1.audit_mark(), filter_calls(member1)
    with stream(member1, small, every=1 / per_second) as made:
        wait_seconds(SECONDS, "a while under load")
    wait_for("all others bound", lambda: len(bound(member1, namespace, "small-")) == len(made), 2 * GENEROUS)
    calls = filter_calls(member1) - before - len(made)
    events = member1.audit_events(since)
    took = delays(events, "small-")
    writes = [e for e in events if e.name in texts and e.user == SCHEDULER_USER and e.resource == "pods"]
    print(
        f"\n  {waiting} waiting pods ({why}), {len(made) / SECONDS:.0f} Bindings/s:"
        f" {calls / SECONDS:.0f} filter calls/s, {len(writes)} writes for them;"
        f" others bound after {statistics.median(took) * 1000:.0f} ms (median), {took[-1] * 1000:.0f} ms (longest)"
    )
    assert len(took) == len(made)
    assert messages() == texts
    assert len(writes) <= waiting, "a text that changes wakes its pod again"
    assert bound(member1, namespace, "gang-") == []


# --- waking ------------------------------------------------------------------------------------------------------

WAKES = ["last member", "freed room", "new node", "PodGroup changed", "PodGroup made"]


@pytest.mark.parametrize("what", WAKES)
def test_a_waiting_gang_is_woken_when_it_becomes_possible(
    member1: Cluster, namespace: str, member_nodes: SetNodes, what: str
) -> None:
    """Refused members rest until something makes their gang possible; then they land within a second (scheduler idle).

    Three pods of 3 CPUs, two or three nodes of 4.
    """
    nodes = 3 if what in ("last member", "PodGroup made") else 2
    member_nodes(member1=[NodeShape(count=nodes, cpu="4", gpus=0)])
    posted = 2 if what in ("last member", "PodGroup changed") else 3
    landing = 2 if what == "PodGroup changed" else 3
    with posting(member1) as post:
        if what == "freed room":
            member1.add_nodes(NodeShape(count=1, cpu="4", gpus=0))
            post(plain_pod(namespace, "other", cpu="3"))
            wait_for("somebody else has a node", lambda: bound(member1, namespace) == ["other"], GENEROUS)
        if what != "PodGroup made":
            post(pod_group(namespace, "gang", 3))
        for index in range(posted):
            post(gang_pod(namespace, "gang", index, cpu="3"))
        if what == "last member":
            wait_state(member1, "assembling")
            wait_state(member1, "incomplete")
        wait_refused(member1, namespace, *(f"gang-{index}" for index in range(posted)))
        quiet(member1)
        with Stopwatch(f"{what}: to the last binding", "1 s"):
            if what == "last member":
                post(gang_pod(namespace, "gang", 2, cpu="3"))
            elif what == "freed room":
                delete_pod(member1, namespace, "other")
            elif what == "new node":
                member1.add_nodes(NodeShape(count=1, cpu="4", gpus=0))
            elif what == "PodGroup changed":
                patch(member1, f"{POD_GROUPS.format(namespace)}/gang", {"spec": {"minMember": 2}})
            else:
                post(pod_group(namespace, "gang", 3))
            wait_landed(member1, namespace, "gang", landing)


def quiet(member: Cluster) -> None:
    """kube-scheduler has stopped asking: everything that waits rests."""
    last = [-1]

    def rests() -> bool:
        now, last[0] = filter_calls(member), last[0]
        same, last[0] = now == last[0], now
        return same

    wait_for("kube-scheduler rests", rests, GENEROUS, interval=1.0)


def test_a_gang_is_woken_on_a_busy_cluster_too(member1: Cluster, namespace: str, member_nodes: SetNodes) -> None:
    """With other pods coming all the time: at most the remaining back-off (podMaxBackoffSeconds 2) later."""
    member_nodes(member1=[NodeShape(count=2, cpu="4", gpus=0), NodeShape(count=1, cpu="64", gpus=0, prefix="busy",
                                                                         taints=("busy:NoSchedule",))])  # fmt: skip

    def small(number: int) -> Json:
        tolerations = [{"key": "busy", "operator": "Exists"}]
        return plain_pod(namespace, f"small-{number}", cpu="10m", tolerations=tolerations)

    with stream(member1, small, every=0.1):
        post_gang(member1, namespace, "gang", 3, cpu="3")
        wait_refused(member1, namespace, "gang-0", "gang-1", "gang-2")
        wait_seconds(2.0, "their back-off to grow")
        with Stopwatch("a new node on a busy cluster: to the last binding", "2 s"):
            member1.add_nodes(NodeShape(count=1, cpu="4", gpus=0))
            wait_landed(member1, namespace, "gang", 3)
