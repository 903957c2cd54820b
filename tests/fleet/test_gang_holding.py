"""What users of other gang schedulers reported as broken, by its number (A5 to A8): holding, arrival, no starvation.

Starving that only a claim ends is in test_gang_limits.py."""

import time

import pytest

from hack.fleet.fleet import Cluster, Fleet, wait_for
from hack.fleet.spec import NodeShape
from tests.fleet.conftest import SetNodes
from tests.fleet.gang_stories import (
    delete_pod,
    denied_bindings,
    four_cpus,
    metric,
    nodes_of,
    post_gang,
    refused_bindings,
    stream,
    wait_held,
    wait_refused,
    wait_seconds,
    wait_state,
)
from tests.fleet.stories import (
    GENEROUS,
    Json,
    Stopwatch,
    assert_bound_once,
    bindings_posted,
    bound,
    delete_pods,
    gang_pod,
    plain_pod,
    pod_group,
    pods,
    posting,
    running,
    seconds_between,
    wait_landed,
)

NOBODY = "nobody"
"""schedulerName of pods that exist and are never scheduled."""

# --- A5: holding is bounded --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [3, pytest.param(100, id="100-longer-than-a-bind-call", marks=pytest.mark.long)])
def test_a5_holding_is_bounded(member1: Cluster, namespace: str, member_nodes: SetNodes, seconds: int) -> None:
    """Holding is bounded: members are released at scheduleTimeoutSeconds, all together; the room is free within 1 s,
    also while kube-scheduler is busy with other pods."""
    member_nodes(member1=[four_cpus(3), four_cpus(1, prefix="busy", pods=1000, taints=("busy:NoSchedule",))])

    def small(number: int) -> Json:
        tolerations = [{"key": "busy", "operator": "Exists"}]
        return plain_pod(namespace, f"small-{number}", cpu="1m", tolerations=tolerations)

    with stream(member1, small, every=0.2), posting(member1) as post:
        post(pod_group(namespace, "gang", 3, scheduleTimeoutSeconds=seconds))
        post(gang_pod(namespace, "gang", 2, cpu="3", schedulerName=NOBODY))
        for index in (0, 1):
            post(gang_pod(namespace, "gang", index, cpu="3"))
        wait_held(member1, 2)
        began = time.monotonic()
        for index in range(3):
            post(plain_pod(namespace, f"next-{index}", cpu="3"))
        wait_for("the room given to others", lambda: len(bound(member1, namespace, "next-")) == 3, seconds + GENEROUS)
        held = time.monotonic() - began
    print(f"\n  scheduleTimeoutSeconds {seconds}: the room went to others after {held:.2f} s")
    assert seconds - 0.5 <= held < seconds + 20
    assert bound(member1, namespace, "gang-") == []
    first, *_, last = [e for e in bindings_posted(member1, namespace) if e.name.startswith("next-")]
    assert seconds_between(first, last) < 2.0

    delete_pod(member1, namespace, "gang-2")
    delete_pods(member1, namespace, "next-")
    with posting(member1) as post:
        post(gang_pod(namespace, "gang", 2, cpu="3"))
    wait_landed(member1, namespace, "gang", 3)


@pytest.mark.parametrize(
    ("rounds", "later"),
    [(1, 0.0), *(pytest.param(3, moment / 4, marks=pytest.mark.long) for moment in range(8))],
)
def test_a5_a_wait_shorter_than_the_schedulers_back_off_still_converges(
    member1: Cluster, namespace: str, member_nodes: SetNodes, rounds: int, later: float
) -> None:
    """Holding is bounded: any value works. kube-scheduler tries a failed pod again after 1 s, then after 2 s: members
    that wait for 1 s have to meet all the same."""
    member_nodes(member1=[four_cpus(3)])
    before = metric(member1, "muster_gang_timeouts_total")
    with posting(member1) as post:
        post(pod_group(namespace, "gang", 3, scheduleTimeoutSeconds=1))
        post(gang_pod(namespace, "gang", 2, cpu="3", schedulerName=NOBODY))
        for index in (0, 1):
            post(gang_pod(namespace, "gang", index, cpu="3"))
        wait_held(member1, 2)
        wait_for("rounds in vain", lambda: metric(member1, "muster_gang_timeouts_total") >= before + rounds, GENEROUS)
        wait_seconds(later, "another moment of the round")
        delete_pod(member1, namespace, "gang-2")
        post(gang_pod(namespace, "gang", 3, cpu="3"))
    with Stopwatch("from the member that was missing to the last binding, each waiting 1 s"):
        wait_landed(member1, namespace, "gang", 3, timeout=20)


@pytest.mark.long
@pytest.mark.parametrize("gangs", [40, 200])
def test_a5_many_gangs_at_once_do_not_time_out_merely_for_queueing(
    fleet: Fleet, member1: Cluster, namespace: str, member_nodes: SetNodes, gangs: int
) -> None:
    """Holding is bounded: but members that are still in kube-scheduler's queue are worth waiting for. All pods are
    there when it starts, and it takes them one by one, the gangs mixed."""
    member_nodes(member1=[NodeShape(count=2, cpu="1000", gpus=0, pods=2000)])
    scheduler = fleet.processes["member1/kube-scheduler"]
    scheduler.kill()
    with posting(member1) as post:
        for number in range(gangs):
            post(pod_group(namespace, f"gang{number}", 4, scheduleTimeoutSeconds=1))
        for index in range(4):
            for number in range(gangs):
                post(gang_pod(namespace, f"gang{number}", index, cpu="1"))
    before = metric(member1, "muster_gang_timeouts_total")
    scheduler.start()
    with Stopwatch(f"{gangs} gangs of 4, from the scheduler's start to the last binding"):
        wait_for("all land", lambda: len(bound(member1, namespace)) == 4 * gangs, 2 * GENEROUS, interval=0.3)
    assert metric(member1, "muster_gang_timeouts_total") == before
    assert_bound_once(bindings_posted(member1, namespace))


# --- A6: a running gang gets its lost member back --------------------------------------------------------------


@pytest.mark.parametrize("how", ["deleted", "evicted"])
def test_a6_a_running_gang_gets_its_lost_member_back(
    member1: Cluster, namespace: str, member_nodes: SetNodes, how: str
) -> None:
    """A lost member's replacement schedules alone, and is preferred for the freed place over another pod of equal
    priority, even one that has waited for long."""
    member_nodes(member1=[four_cpus(3)])
    post_gang(member1, namespace, "gang", 3, cpu="3")
    wait_for("running", lambda: len(running(member1, namespace)) == 3, GENEROUS)
    kept = nodes_of(member1, namespace)
    with posting(member1) as post:
        for index in range(3):
            post(plain_pod(namespace, f"queue-{index}", cpu="3"))
        wait_refused(member1, namespace, "queue-0", "queue-1", "queue-2")
        if how == "deleted":
            delete_pod(member1, namespace, "gang-1")
        else:
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "gang-1"}}
            rest = member1.rest()
            rest.post(f"/api/v1/namespaces/{namespace}/pods/gang-1/eviction", eviction)
            rest.close()
            wait_for("it is gone", lambda: "gang-1" not in [p["metadata"]["name"] for p in pods(member1, namespace)])
        wait_seconds(0.5, "the controller to notice")
        with Stopwatch("from the replacement to its binding", "1 s"):
            post(gang_pod(namespace, "gang", 3, cpu="3"))
            wait_landed(member1, namespace, "gang", 3)
    assert bound(member1, namespace, "queue-") == []
    assert nodes_of(member1, namespace) == {
        **{k: v for k, v in kept.items() if k != "gang-1"},
        "gang-3": kept["gang-1"],
    }


# --- A7: slow creation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("podgroup", ["before", "after"])
def test_a7_slow_creation(member1: Cluster, namespace: str, member_nodes: SetNodes, podgroup: str) -> None:
    """Pods created one per second, PodGroup before or after them: the gang lands within about 1 s of what came last."""
    member_nodes(member1=[four_cpus(3)])
    with posting(member1) as post:
        if podgroup == "before":
            post(pod_group(namespace, "gang", 3))
        for index in range(3):
            post(gang_pod(namespace, "gang", index, cpu="3"))
            began = time.monotonic()
            if index < 2 or podgroup == "after":
                wait_seconds(1.0, "the next pod")
        assert podgroup == "before" or bound(member1, namespace) == []
        if podgroup == "after":
            began = time.monotonic()
            post(pod_group(namespace, "gang", 3))
    wait_landed(member1, namespace, "gang", 3)
    print(f"\n  PodGroup {podgroup} the pods: from what came last to the last binding {time.monotonic() - began:.2f} s")
    assert_bound_once(bindings_posted(member1, namespace))


def test_a7_room_for_the_unseen_is_held_for_five_seconds_at_most(
    member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    """Room for members not yet seen is held 5 s at most from the first; then others have it, until a member comes."""
    member_nodes(member1=[four_cpus(3)])
    with posting(member1) as post:
        post(pod_group(namespace, "gang", 3))
        began = time.monotonic()
        for index in (0, 1):
            post(gang_pod(namespace, "gang", index, cpu="3"))
        wait_held(member1, 2)
        post(plain_pod(namespace, "next", cpu="3"))
        wait_for("others have the room", lambda: bound(member1, namespace) == ["next"], GENEROUS)
        held = time.monotonic() - began
        print(f"\n  room for the unseen was held for {held:.2f} s")
        assert held >= 4.5
        wait_state(member1, "incomplete")
        delete_pod(member1, namespace, "next")
        post(gang_pod(namespace, "gang", 2, cpu="3"))
    wait_landed(member1, namespace, "gang", 3)


# --- A8: nobody starves ------------------------------------------------------------------------------------------


def test_a8_a_gang_that_cannot_fit_does_not_block_smaller_work(
    member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    """A gang that cannot fit must not block smaller work: neither plain pods nor a smaller gang."""
    member_nodes(member1=[four_cpus(3)])
    post_gang(member1, namespace, "big", 4, cpu="3")
    wait_refused(member1, namespace, "big-0", "big-1", "big-2", "big-3")
    with Stopwatch("a small gang and a plain pod beside one that can't fit", "1 s"), posting(member1) as post:
        post_gang(member1, namespace, "small", 2, cpu="3")
        post(plain_pod(namespace, "plain", cpu="3"))
        wait_for("both land", lambda: len(bound(member1, namespace)) == 3, GENEROUS)
    assert bound(member1, namespace, "big") == []


def test_a8_a_gang_whose_binds_are_always_refused_does_not_block_others(
    member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    """A gang whose binds are always refused must not block smaller work on other nodes, and retries back off."""
    member_nodes(member1=[four_cpus(4)])
    with denied_bindings(member1, namespace, "cursed-0", "cursed-1"):
        since = member1.audit_mark()
        post_gang(member1, namespace, "cursed", 2, cpu="3")
        wait_for("two refusals each", lambda: len(refused_bindings(member1, namespace, since)) >= 4, GENEROUS)
        with Stopwatch("another gang beside one whose binds are refused", "1 s"):
            post_gang(member1, namespace, "other", 2, cpu="3")
            wait_landed(member1, namespace, "other", 2)
        wait_seconds(4.0, "retries to back off")
        attempts = len(refused_bindings(member1, namespace, since)) / 2
        print(f"\n  {attempts:.0f} attempts per pod in some 5 s")
        assert attempts <= 10
    assert bound(member1, namespace, "cursed") == []
