"""What users of other gang schedulers reported as broken, by its number (A1 to A4): whole or nothing, the commit."""

import pytest

from hack.fleet.fleet import Cluster, Fleet, wait_for
from tests.fleet.conftest import SetNodes
from tests.fleet.gang_stories import (
    POD_GROUPS,
    ask_bind,
    delete_pod,
    denied_bindings,
    four_cpus,
    group_status,
    patch,
    post_gang,
    refused_bindings,
    wait_held,
    wait_refused,
    wait_seconds,
)
from tests.fleet.stories import (
    GENEROUS,
    Stopwatch,
    assert_bound_once,
    assert_no_node_overcommitted,
    bindings_posted,
    bound,
    delete_pods,
    events_about,
    gang_pod,
    plain_pod,
    pod_group,
    pods,
    posting,
    requested_cpu,
    running,
    wait_landed,
)

# --- A1, A2: whole or nothing --------------------------------------------------------------------------------------


def test_a1_no_two_half_gangs(member1: Cluster, namespace: str, member_nodes: SetNodes) -> None:
    """No two half gangs: of gangs that fit alone but not together, members arriving interleaved, one lands whole.

    Five nodes; gangs of 5, 4 and 3 pods that take a node each: no two of them fit. See also test_contention.py.
    """
    member_nodes(member1=[four_cpus(5)])
    sizes = {"five": 5, "four": 4, "three": 3}
    with posting(member1) as post:
        for gang, size in sizes.items():
            post(pod_group(namespace, gang, size))
        for index in range(5):
            for gang, size in sizes.items():
                if index < size:
                    post(gang_pod(namespace, gang, index, cpu="3"))

    def whole() -> str:
        return next((gang for gang, size in sizes.items() if len(bound(member1, namespace, f"{gang}-")) == size), "")

    order = []
    while sizes:
        gang = wait_for(f"one of {list(sizes)} whole", whole, GENEROUS)
        order.append((gang, sizes.pop(gang)))
        delete_pods(member1, namespace, f"{gang}-")

    events = bindings_posted(member1, namespace)
    assert_bound_once(events)
    landed = [event.name.split("-")[0] for event in events]
    assert landed == [gang for gang, size in order for _ in range(size)], "one after the other, each whole"


def test_a2_nothing_is_bound_before_the_whole_quorum_is_there(
    member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    """Commit only a whole quorum: a member failing after it had a node releases all."""
    nodes = member_nodes(member1=[four_cpus(3)])["member1"]
    with posting(member1) as post:
        post(pod_group(namespace, "gang", 3))
        for index in (0, 1):
            post(gang_pod(namespace, "gang", index, cpu="3"))
        wait_held(member1, 2)
        with Stopwatch("from the loss of a node to the release of both that wait", "1 s"):
            member1.kubectl("cordon", nodes[0])
            wait_held(member1, 0)
        post(gang_pod(namespace, "gang", 2, cpu="3"))
    wait_refused(member1, namespace, "gang-0", "gang-1", "gang-2")
    assert bindings_posted(member1, namespace) == []

    member1.kubectl("uncordon", nodes[0])
    wait_landed(member1, namespace, "gang", 3)
    assert_bound_once(bindings_posted(member1, namespace))


def test_a2_the_minimum_is_read_again_before_the_commit(
    member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    """Commit only a whole quorum: minMember as it is then, not as it was when members began to wait."""
    member_nodes(member1=[four_cpus(4)])
    with posting(member1) as post:
        post(pod_group(namespace, "gang", 3))
        for index in (0, 1):
            post(gang_pod(namespace, "gang", index, cpu="3"))
        wait_held(member1, 2)
        patch(member1, f"{POD_GROUPS.format(namespace)}/gang", {"spec": {"minMember": 4}})
        post(gang_pod(namespace, "gang", 2, cpu="3"))
        wait_held(member1, 3)
        assert bindings_posted(member1, namespace) == []
        post(gang_pod(namespace, "gang", 3, cpu="3"))
    wait_landed(member1, namespace, "gang", 4)


# --- A3, A4: the commit ----------------------------------------------------------------------------------------


def test_a3_a_failed_bind_after_siblings_are_bound_is_healed_in_place(
    member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    """A failed bind after siblings are bound: retried inside the bind call, its place kept, never Running below
    minMember."""
    member_nodes(member1=[four_cpus(3)])
    with denied_bindings(member1, namespace, "gang-2") as lift:
        post_gang(member1, namespace, "gang", 3, cpu="3")
        wait_for("both siblings run", lambda: running(member1, namespace) == ["gang-0", "gang-1"], GENEROUS)
        with posting(member1) as post:
            post(plain_pod(namespace, "thief", cpu="3"))
        wait_refused(member1, namespace, "thief")
        wait_for("its phase", lambda: group_status(member1, namespace, "gang").get("running") == 2, GENEROUS)
        assert group_status(member1, namespace, "gang")["phase"] == "Scheduling"
        with Stopwatch("from the end of the denial to the last binding", "2 s"):
            lift()
            wait_landed(member1, namespace, "gang", 3)

    assert set(refused_bindings(member1, namespace)) == {"gang-2"}
    assert_bound_once(bindings_posted(member1, namespace))
    assert [e for e in events_about(member1, namespace, "gang-2") if e["reason"] == "FailedScheduling"] == [], (
        "kube-scheduler has not noticed: the call was held all the time"
    )
    assert bound(member1, namespace, "thief") == []
    wait_for("Running", lambda: group_status(member1, namespace, "gang").get("phase") == "Running", GENEROUS)


def test_a3_a_member_deleted_in_the_midst_of_the_commit_is_replaced(
    member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    """A failed bind after siblings are bound: the pod itself goes while its Binding is tried again; the one made in its
    place has its room."""
    member_nodes(member1=[four_cpus(3)])
    with denied_bindings(member1, namespace, "gang-2"), posting(member1) as post:
        post_gang(member1, namespace, "gang", 3, cpu="3")
        wait_for("both siblings run", lambda: running(member1, namespace) == ["gang-0", "gang-1"], GENEROUS)
        delete_pod(member1, namespace, "gang-2")
        post(plain_pod(namespace, "thief", cpu="3"))
        wait_refused(member1, namespace, "thief")
        with Stopwatch("from the replacement to its binding", "1 s"):
            post(gang_pod(namespace, "gang", 3, cpu="3"))
            wait_landed(member1, namespace, "gang", 3)
    assert bound(member1, namespace, "thief") == []
    assert_bound_once(bindings_posted(member1, namespace))


@pytest.mark.parametrize("how", ["hang", "cut"])
def test_a3_the_way_to_the_api_server_is_lost_in_the_midst_of_the_commit(
    fleet: Fleet, member1: Cluster, namespace: str, member_nodes: SetNodes, how: str
) -> None:
    """A failed bind after siblings are bound: two of six Bindings are there when the extender loses its API server.
    The outcome of the others is unknown to it; the end is whole, and each pod is bound once."""
    member_nodes(member1=[four_cpus(6)])
    with denied_bindings(member1, namespace, *(f"gang-{index}" for index in range(2, 6))) as lift:
        post_gang(member1, namespace, "gang", 6, cpu="3")
        wait_for("two are bound", lambda: len(bound(member1, namespace)) == 2, GENEROUS)
        (fleet.hang if how == "hang" else fleet.cut)("member1/extender", "member1")
        lift()
        wait_seconds(3.0, "POSTs to time out")
        assert len(bound(member1, namespace)) == 2
        with Stopwatch(f"from the end of the {how} to the last binding"):
            fleet.heal("member1/extender")
            wait_landed(member1, namespace, "gang", 6)
    assert_bound_once(bindings_posted(member1, namespace))
    assert_no_node_overcommitted(member1, requested_cpu)


def test_a4_bind_is_idempotent(member1: Cluster, namespace: str, member_nodes: SetNodes) -> None:
    """Bind is idempotent: a repeat for a pod already on that node succeeds; on another it errs and posts nothing."""
    nodes = member_nodes(member1=[four_cpus(3)])["member1"]
    post_gang(member1, namespace, "gang", 2, cpu="3")
    with posting(member1) as post:
        post(plain_pod(namespace, "plain", cpu="3"))
    wait_landed(member1, namespace, "gang", 2)
    wait_for("the plain one too", lambda: len(bound(member1, namespace)) == 3, GENEROUS)
    since = member1.audit_mark()
    for pod in pods(member1, namespace):
        here = pod["spec"]["nodeName"]
        assert ask_bind(member1, pod, here) == ""
        other = next(node for node in nodes if node != here)
        assert ask_bind(member1, pod, other) == "this pod is bound to another node"
    unlike = {"metadata": pod["metadata"] | {"uid": "another"}}
    assert ask_bind(member1, unlike, here) != "", "the name alone is not the pod"
    assert [e for e in member1.audit_events(since) if e.target == "pods/binding"] == []
    assert_bound_once(bindings_posted(member1, namespace))
