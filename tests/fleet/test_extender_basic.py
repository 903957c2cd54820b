"""The extender beside a real kube-scheduler: plain pods, a user's own gang, what it writes, when it is ready."""

import ssl
import urllib.error
import urllib.request
from collections import Counter

import pytest

from hack.fleet import pki
from hack.fleet.fleet import Cluster, Fleet, wait_for
from hack.fleet.spec import NodeShape
from tests.fleet.conftest import SetNodes
from tests.fleet.stories import (
    GENEROUS,
    Stopwatch,
    assert_bound_once,
    assert_no_node_overcommitted,
    bindings_posted,
    bound,
    gang_pod,
    plain_pod,
    pod_group,
    posting,
    requested_cpu,
    running,
    seconds_between,
    wait_landed,
)

EXTENDER_USER = pki.USERS[pki.EXTENDER][0]
SCHEDULER_USER = pki.USERS[pki.SCHEDULER][0]


def probe(member: Cluster, path: str) -> tuple[int, str]:
    """(status, text) of the extender's own endpoint."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{member.port('extender metrics')}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def is_ready(member: Cluster) -> bool:
    return probe(member, "/readyz")[0] == 200


@pytest.mark.parametrize("scheduler", ["default-scheduler", "muster"])
def test_plain_pods_are_scheduled_one_binding_each(
    fleet: Fleet, member1: Cluster, namespace: str, member_nodes: SetNodes, scheduler: str
) -> None:
    """Three nodes of four CPUs hold twelve pods of one: every node is filled to the brim, none above."""
    member_nodes(member1=[NodeShape(count=3, cpu="4", gpus=0)])
    since = member1.audit_mark()
    with posting(member1) as post, Stopwatch(f"12 plain pods by {scheduler}"):
        for index in range(12):
            post(plain_pod(namespace, f"plain-{index}", cpu="1", schedulerName=scheduler))
        wait_landed(member1, namespace, "plain", 12)
    wait_for("all running", lambda: len(running(member1, namespace)) == 12, GENEROUS)

    assert_no_node_overcommitted(member1, requested_cpu)
    events = [e for e in member1.audit_events(since) if e.namespace == namespace]
    by_extender = Counter((e.verb, e.target, e.name) for e in events if e.user == EXTENDER_USER)
    assert by_extender == Counter({("create", "pods/binding", f"plain-{index}"): 1 for index in range(12)})
    by_scheduler = {(e.verb, e.resource) for e in events if e.user == SCHEDULER_USER}
    assert by_scheduler <= {("create", "events"), ("patch", "events")}


def test_a_pod_without_room_waits_and_goes_when_room_appears(
    fleet: Fleet, member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    member_nodes(member1=[NodeShape(count=1, cpu="2", gpus=0)])
    with posting(member1) as post:
        post(plain_pod(namespace, "big", cpu="3"))
        post(plain_pod(namespace, "small", cpu="1"))
    wait_for("the small one bound", lambda: bound(member1, namespace) == ["small"], GENEROUS)
    with Stopwatch("from a new node to the binding", "2 s"):
        member1.add_nodes(NodeShape(count=1, cpu="4", gpus=0, prefix="late"))
        wait_for("both bound", lambda: bound(member1, namespace) == ["big", "small"], GENEROUS)


@pytest.mark.parametrize("scheduler", ["default-scheduler", "muster"])
def test_a_gang_of_the_users_own_lands_whole(
    fleet: Fleet, member1: Cluster, namespace: str, member_nodes: SetNodes, scheduler: str
) -> None:
    """minMember 6 on two nodes of three: nothing is bound until the sixth pod is there, then all at once."""
    member_nodes(member1=[NodeShape(count=2, cpu="3", gpus=0)])
    since = member1.audit_mark()
    with posting(member1) as post:
        post(pod_group(namespace, "gang", 6))
        for index in range(5):
            post(gang_pod(namespace, "gang", index, cpu="1", schedulerName=scheduler))
        assert bound(member1, namespace) == []
        with Stopwatch("from the last member to the last binding", "1 s"):
            post(gang_pod(namespace, "gang", 5, cpu="1", schedulerName=scheduler))
            wait_landed(member1, namespace, "gang", 6)

    events = bindings_posted(member1, namespace, since)
    assert len(events) == 6
    assert_bound_once(events)
    assert_no_node_overcommitted(member1, requested_cpu)
    first, *_, last = sorted(events, key=lambda event: event.time)
    print(f"\n  first to last Binding: {seconds_between(first, last) * 1000:.1f} ms")
    written = Counter(
        e.target
        for e in member1.audit_events(since)
        if e.user == EXTENDER_USER and e.namespace == namespace and e.resource in ("pods", "podgroups")
    )
    assert written["pods/binding"] == 6
    assert set(written) <= {"pods/binding", "podgroups/status", "pods"}, "pods: waking members that were refused"


def test_ready_only_while_the_scheduler_beside_it_leads(fleet: Fleet, member1: Cluster) -> None:
    scheduler = fleet.processes["member1/kube-scheduler"]
    wait_for("ready at first", lambda: is_ready(member1), GENEROUS)
    scheduler.kill()
    wait_for("not ready without its scheduler", lambda: not is_ready(member1), GENEROUS)
    assert "does not hold its lease" in probe(member1, "/readyz")[1]
    assert probe(member1, "/healthz")[0] == 200
    scheduler.start()
    with Stopwatch("from the scheduler's start to ready"):
        wait_for("ready again", lambda: is_ready(member1), GENEROUS)


def test_ready_only_with_complete_caches(fleet: Fleet, member1: Cluster, namespace: str) -> None:
    """A fresh process that cannot reach the API server knows nothing and says so; then it catches up by itself."""
    extender = fleet.processes["member1/extender"]
    extender.kill()
    fleet.cut("member1/extender")
    extender.restart(wait=False)
    wait_for("it answers", lambda: is_alive(member1), GENEROUS)
    status, text = probe(member1, "/readyz")
    assert status == 503
    assert "cache not complete" in text
    fleet.heal("member1/extender")
    with Stopwatch("from a healed link to ready"):
        wait_for("ready", lambda: is_ready(member1), GENEROUS)
    with posting(member1) as post:
        post(plain_pod(namespace, "plain", cpu="1"))
    wait_for("it decides", lambda: bound(member1, namespace) == ["plain"], GENEROUS)


def is_alive(member: Cluster) -> bool:
    try:
        return probe(member, "/healthz")[0] == 200
    except OSError:
        return False


def test_asked_to_stop_it_ends_cleanly_and_its_successor_takes_over_at_once(fleet: Fleet, member1: Cluster) -> None:
    extender = fleet.processes["member1/extender"]
    before = extender.log.stat().st_size
    with Stopwatch("a clean restart"):
        extender.restart()
    with extender.log.open() as file:
        file.seek(before)
        log = file.read()
    assert "logger=extender stopped" in log
    assert "Traceback" not in log
    assert is_ready(member1)


def test_kube_scheduler_without_a_client_certificate_is_not_served(fleet: Fleet, member1: Cluster) -> None:
    """The same TLS port, the same authority, no certificate: the handshake ends it."""
    context = ssl.create_default_context(cafile=str(member1.extender_pki / "ca.crt"))
    with pytest.raises((urllib.error.URLError, ConnectionError, ssl.SSLError)):
        urllib.request.urlopen(
            f"https://127.0.0.1:{member1.port('extender')}/filter", data=b"{}", timeout=5, context=context
        )
