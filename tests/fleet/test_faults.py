"""Kill, stop and restart at the worst moment: the job runs once, in one cluster, and no node gets too much."""

import contextlib
import threading
from collections.abc import Iterator

import pytest

from hack.fleet.fleet import Cluster, Fleet, wait_for
from hack.fleet.spec import NodeShape
from tests.fleet.conftest import SetNodes
from tests.fleet.stories import (
    GENEROUS,
    Json,
    Stopwatch,
    assert_bound_once,
    assert_no_node_overcommitted,
    bindings_posted,
    bound,
    gang_pod,
    nothing_left,
    plain_pod,
    pod_group,
    policy,
    posting,
    pytorch_job,
    read,
    requested_cpu,
    resource_binding,
    wait_landed,
)

BIND_TIMEOUT = 75.0
"""httpTimeout of the bind entry in manifests/base/member/scheduler-config.yaml, seconds."""
MINUTE = 60.0


def wait_held(member: Cluster, count: int) -> None:
    """So many bind calls are held open by the member's extender."""
    wait_for(f"{count} held bind calls", lambda: in_flight(member, "bind") >= count)


def in_flight(member: Cluster, verb: str) -> int:
    """muster_extender_requests_in_flight{verb}."""
    import urllib.request  # noqa: PLC0415

    url = f"http://127.0.0.1:{member.port('extender metrics')}/metrics"
    with urllib.request.urlopen(url, timeout=5) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("muster_extender_requests_in_flight{") and f'verb="{verb}"' in line:
                return int(float(line.rsplit(" ", 1)[1]))
    return 0


def test_the_extender_killed_with_a_gang_at_the_barrier(
    fleet: Fleet, member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    member_nodes(member1=[NodeShape(count=3, cpu="4", gpus=0)])
    extender = fleet.processes["member1/extender"]
    with posting(member1) as post:
        post(pod_group(namespace, "gang", 3))
        for index in (0, 1):
            post(gang_pod(namespace, "gang", index, cpu="3"))
        wait_held(member1, 2)
        extender.kill()
        assert bound(member1, namespace) == []
        post(gang_pod(namespace, "gang", 2, cpu="3"))
    extender.start()

    with Stopwatch("from the extender's restart to the gang's last binding"):
        wait_landed(member1, namespace, "gang", 3)

    assert_bound_once(bindings_posted(member1, namespace))
    assert_no_node_overcommitted(member1, requested_cpu)


class Trigger(threading.Thread):
    """Watches one collection as admin and calls `act` at the first event that satisfies `when`, as fast as it can."""

    def __init__(self, cluster: Cluster, path: str, when, act) -> None:
        super().__init__(daemon=True)
        self._cluster, self._path, self._when, self._act = cluster, path, when, act
        self.fired = threading.Event()

    def run(self) -> None:
        """Polls as fast as one connection goes (well under a millisecond each): simpler than a watch, as quick."""
        with contextlib.closing(self._cluster.rest()) as rest:
            while not self.fired.is_set():
                if any(self._when(item) for item in rest.get(self._path)["items"]):
                    self._act()
                    self.fired.set()


def attempt_is(*states: str):
    return lambda item: (item["spec"].get("attempt") or {}).get("state") in states


def wished(state: str):
    return lambda item: item["spec"].get("state", "Pending") == state


HUB_BINDINGS = "/apis/muster.dev/v1alpha1/namespaces/{}/resourcebindings"
RESERVATIONS = "/apis/muster.dev/v1alpha1/gangreservations"
POINTS = {
    "binding-created": ("hub", HUB_BINDINGS, lambda _: True),
    "reserving-recorded": ("hub", HUB_BINDINGS, attempt_is("Reserving", "Scheduled", "Landed")),
    "reservation-posted": ("member1", RESERVATIONS, lambda _: True),
    "scheduled-recorded": ("hub", HUB_BINDINGS, attempt_is("Scheduled", "Landed")),
    "reservation-dispatched": ("member1", RESERVATIONS, wished("Dispatched")),
    "podgroup-posted": ("member1", "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{}/podgroups", lambda _: True),
    "job-posted": ("member1", "/apis/kubeflow.org/v1/namespaces/{}/pytorchjobs", lambda _: True),
}


@pytest.mark.parametrize("point", POINTS)
def test_the_dispatcher_killed_on_the_way(
    fleet: Fleet, hub: Cluster, member1: Cluster, namespace: str, member_nodes: SetNodes, point: str
) -> None:
    """Killed as soon as the API server shows that the step is done. After the restart: one copy, one epoch, each pod
    bound once; and the deletion leaves nothing."""
    member_nodes(member1=[NodeShape(count=3, cpu="4", gpus=0)], member2=[NodeShape(count=3, cpu="4", gpus=0)])
    fleet.members["member2"].kubectl("cordon", "-l", "type=kwok")
    wait_for(
        "the hub knows that member2 has no room",
        lambda: usable_nodes(hub, "member2") == 0,
        GENEROUS,
    )
    dispatcher = fleet.processes["hub/dispatcher"]
    where, path, when = POINTS[point]
    trigger = Trigger(fleet.clusters[where], path.format(namespace), when, dispatcher.kill)
    trigger.start()
    hub.apply(policy(namespace), pytorch_job(namespace, "train", workers=2))
    assert trigger.fired.wait(GENEROUS), f"never seen: {point}"
    trigger.join()
    fleet.members["member2"].kubectl("uncordon", "-l", "type=kwok")  # now both members could take it
    dispatcher.start()

    wait_for(
        "three pods landed in one member",
        lambda: any(len(bound(m, namespace)) == 3 for m in fleet.members.values()),
        GENEROUS,
    )
    wait_for(
        "recorded as landed",
        lambda: (
            ((resource_binding(hub, namespace, "train") or {})["spec"].get("attempt") or {}).get("state") == "Landed"
        ),
        GENEROUS,
    )
    used = [m for m in fleet.members.values() if bindings_posted(m, namespace)]
    assert len(used) == 1
    assert_bound_once(bindings_posted(used[0], namespace))
    copies = [
        m.name
        for m in fleet.members.values()
        if read(m, f"/apis/kubeflow.org/v1/namespaces/{namespace}/pytorchjobs/train")
    ]
    assert copies == [used[0].name]

    hub.kubectl("delete", "pytorchjob", "train", "-n", namespace, "--timeout=60s")
    nothing_left(fleet, namespace)


def usable_nodes(hub: Cluster, member: str) -> int:
    """Ready, schedulable nodes as the hub knows them."""
    found = hub.get(f"/apis/muster.dev/v1alpha1/memberclusters/{member}")
    return int(found["status"].get("nodes", 0))


@pytest.fixture
def stopped(fleet: Fleet) -> Iterator[Json]:
    """So that a failing test does not leave a stopped process behind."""
    yield {}
    fleet.processes["member1/extender"].cont()


def test_the_extender_stopped_longer_than_the_bind_timeout_posts_nothing_stale(
    fleet: Fleet, member1: Cluster, namespace: str, member_nodes: SetNodes, stopped: Json
) -> None:
    """Two of three members are held at the barrier when the extender is stopped. While it sleeps, somebody else fills
    two of the three planned nodes past any scheduler. Woken up, its old calls are void: nothing is posted for them,
    no node gets too much, and the gang lands when there is room again."""
    nodes = member_nodes(member1=[NodeShape(count=3, cpu="4", gpus=0)])["member1"]
    extender = fleet.processes["member1/extender"]
    with posting(member1) as post:
        post(pod_group(namespace, "gang", 3))
        for index in (0, 1):
            post(gang_pod(namespace, "gang", index, cpu="3"))
        wait_held(member1, 2)
        extender.stop()
        post(gang_pod(namespace, "gang", 2, cpu="3"))
        for index, node in enumerate(nodes[:2]):
            post(plain_pod(namespace, f"intruder-{index}", cpu="3", nodeName=node))
        post(plain_pod(namespace, "plain", cpu="1"))
        wait_for(
            "kube-scheduler to give up both bind calls",
            lambda: all(
                "context deadline exceeded" in message or "Client.Timeout" in message
                for message in scheduling_messages(member1, namespace, ["gang-0", "gang-1"])
            ),
            BIND_TIMEOUT + GENEROUS,
            interval=0.5,
        )
    assert bindings_posted(member1, namespace) == []
    extender.cont()

    wait_for("the plain pod lands", lambda: bound(member1, namespace, "plain"), GENEROUS)
    assert bound(member1, namespace, "gang-") == [], "one node is left for three pods of 3 CPUs"
    assert_no_node_overcommitted(member1, requested_cpu)

    member1.kubectl("delete", "pod", "intruder-0", "intruder-1", "-n", namespace, "--force", "--grace-period=0")
    wait_landed(member1, namespace, "gang", 3)
    assert_bound_once(bindings_posted(member1, namespace))
    assert_no_node_overcommitted(member1, requested_cpu)


def scheduling_messages(member: Cluster, namespace: str, names: list[str]) -> list[str]:
    """Message of each pod's PodScheduled condition, "" where it has none."""
    found = {
        name: next(
            (
                c.get("message", "")
                for c in (read(member, f"/api/v1/namespaces/{namespace}/pods/{name}") or {"status": {}})["status"].get(
                    "conditions", []
                )
                if c["type"] == "PodScheduled"
            ),
            "",
        )
        for name in names
    }
    return list(found.values())


@pytest.mark.parametrize("how", ["down", "hung"])
def test_the_extender_away_for_a_minute(
    fleet: Fleet, member1: Cluster, namespace: str, member_nodes: SetNodes, stopped: Json, how: str
) -> None:
    """Plain pods and a gang that come while it is away all land afterwards."""
    import time  # noqa: PLC0415

    member_nodes(member1=[NodeShape(count=5, cpu="4", gpus=0)])
    extender = fleet.processes["member1/extender"]
    if how == "down":
        extender.kill()
    else:
        extender.stop()
    away_since = time.monotonic()
    with posting(member1) as post:
        post(pod_group(namespace, "gang", 3))
        for index in range(3):
            post(gang_pod(namespace, "gang", index, cpu="3"))
            post(plain_pod(namespace, f"plain-{index}", cpu="1"))
    wait_for("a minute", lambda: time.monotonic() - away_since > MINUTE, MINUTE + 5, interval=0.5)
    assert bound(member1, namespace) == [], "ignorable is false: nothing passes an extender that is away"
    if how == "down":
        extender.start()
    else:
        extender.cont()

    with Stopwatch(f"from the extender's return ({how}) to the last of six bindings"):
        wait_landed(member1, namespace, "gang", 3)
        wait_landed(member1, namespace, "plain", 3)
    assert_bound_once(bindings_posted(member1, namespace))
    assert_no_node_overcommitted(member1, requested_cpu)
