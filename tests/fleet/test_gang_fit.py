"""What users of other gang schedulers reported as broken, by its number (A9, A10, A12, A13): who may preempt, and what
fits, node by node, with every constraint kube-scheduler itself looks at. A11 is in test_gang_requests.py."""

from typing import Any

import pytest

from hack.fleet.fleet import Cluster, Fleet, wait_for
from hack.fleet.spec import NodeShape
from tests.fleet.conftest import SetNodes
from tests.fleet.gang_stories import (
    applied,
    four_cpus,
    metric,
    never_bound,
    nodes_of,
    patch,
    post_gang,
    wait_event,
    wait_refused,
    wait_state,
)
from tests.fleet.stories import (
    GENEROUS,
    Json,
    Stopwatch,
    assert_bound_once,
    assert_no_node_overcommitted,
    bindings_posted,
    bound,
    delete_pods,
    gang_pod,
    plain_pod,
    pod_group,
    pods,
    posting,
    requested_cpu,
    wait_landed,
)

PRIORITIES = "priorityclasses"


def priority_class(namespace: str, name: str, value: int, **spec: Any) -> Json:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": f"{namespace}-{name}"},
        "value": value,
        **spec,
    }


# --- A9: preemption ----------------------------------------------------------------------------------------------


def test_a9_no_victim_for_a_gang_that_still_cannot_land(
    member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    """Preemption helps a gang or does not happen: no victim is evicted for a member of a gang that still can't land.

    Two nodes full of low priority; a gang of three whole nodes of high priority would fit on two of them only.
    """
    member_nodes(member1=[four_cpus(2)])
    urgent = priority_class(namespace, "urgent", 1000)
    with applied(member1, {PRIORITIES: urgent}), posting(member1) as post:
        for index in range(2):
            post(plain_pod(namespace, f"low-{index}", cpu="3"))
        wait_for("both nodes full", lambda: len(bound(member1, namespace, "low-")) == 2, GENEROUS)
        asked = metric(member1, "muster_extender_requests_total", verb="preempt")
        post_gang(member1, namespace, "gang", 3, cpu="3", priorityClassName=urgent["metadata"]["name"])
        wait_refused(member1, namespace, "gang-0", "gang-1", "gang-2")
        assert metric(member1, "muster_extender_requests_total", verb="preempt") > asked, "kube-scheduler wanted to"
        assert [p["metadata"]["name"] for p in pods(member1, namespace) if p["metadata"].get("deletionTimestamp")] == []
        assert len(bound(member1, namespace, "low-")) == 2
        assert not any(p["status"].get("nominatedNodeName") for p in pods(member1, namespace))


def test_a9_a_plain_pod_preempts_gangs_last(member1: Cluster, namespace: str, member_nodes: SetNodes) -> None:
    """Preemption helps or does not happen: an urgent plain pod takes a plain pod's place, not a gang member's."""
    member_nodes(member1=[four_cpus(3)])
    urgent = priority_class(namespace, "urgent", 1000)
    with applied(member1, {PRIORITIES: urgent}), posting(member1) as post:
        post_gang(member1, namespace, "gang", 2, cpu="3")
        wait_landed(member1, namespace, "gang", 2)
        post(plain_pod(namespace, "low", cpu="3"))
        wait_for("full", lambda: len(bound(member1, namespace)) == 3, GENEROUS)
        post(plain_pod(namespace, "urgent", cpu="3", priorityClassName=urgent["metadata"]["name"]))
        wait_for("the urgent one has a node", lambda: bound(member1, namespace, "urgent") == ["urgent"], GENEROUS)
    assert bound(member1, namespace) == ["gang-0", "gang-1", "urgent"]


def test_a9_a_gang_of_higher_priority_takes_promised_room_not_room_that_is_taken(
    member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    """Uncommitted promises go to the gang of higher priority, whole; the other one waits and holds nothing."""
    member_nodes(member1=[four_cpus(3)])
    urgent = priority_class(namespace, "urgent", 1000)
    with applied(member1, {PRIORITIES: urgent}), posting(member1) as post:
        post(pod_group(namespace, "slow", 3))
        for index in range(2):
            post(gang_pod(namespace, "slow", index, cpu="3"))
        wait_state(member1, "assembling")
        post_gang(member1, namespace, "gang", 3, cpu="3", priorityClassName=urgent["metadata"]["name"])
        with Stopwatch("an urgent gang over the promises of a slow one", "1 s"):
            wait_landed(member1, namespace, "gang", 3)
    assert_bound_once(bindings_posted(member1, namespace))
    assert bound(member1, namespace, "slow-") == []


# --- A10, A12, A13: constraints ----------------------------------------------------------------------------------

AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {
                    "matchExpressions": [
                        {"key": "pool", "operator": "In", "values": ["gang"]},
                        {"key": "generation", "operator": "Gt", "values": ["4"]},
                        {"key": "broken", "operator": "DoesNotExist"},
                    ]
                }
            ]
        }
    }
}
TOLERATES = {"tolerations": [{"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}]}
POOL = {"nodeSelector": {"pool": "gang"}}
PORT = [{"containerPort": 80, "hostPort": 8080, "protocol": "TCP"}]

CONSTRAINTS: dict[str, tuple[Json, NodeShape, list[NodeShape]]] = {
    "per-node": ({}, four_cpus(1), [NodeShape(count=3, cpu="2", gpus=0)]),
    "selector": (POOL, four_cpus(1, labels={"pool": "gang"}), [four_cpus(2, labels={"pool": "other"}), four_cpus(1)]),
    "affinity": (
        {"affinity": AFFINITY},
        four_cpus(1, labels={"pool": "gang", "generation": "5"}),
        [
            four_cpus(1, labels={"pool": "gang", "generation": "4"}),
            four_cpus(1, labels={"pool": "gang", "generation": "6", "broken": "yes"}),
            four_cpus(1, labels={"generation": "5"}),
        ],
    ),
    "taints": (
        TOLERATES,
        four_cpus(1, taints=("team=a:NoSchedule",)),
        [four_cpus(1, taints=("team=b:NoSchedule",)), four_cpus(1, taints=("team=a:NoSchedule", "x:NoExecute"))],
    ),
}
"""What a pod asks for; a node that has it; nodes that have room, and not that."""


@pytest.mark.parametrize("what", CONSTRAINTS)
def test_a10_fit_per_node_with_all_constraints(
    member1: Cluster, namespace: str, member_nodes: SetNodes, what: str
) -> None:
    """Never decide by cluster sums: one node is right, the others have room enough in sum. With a second right node the
    gang of two lands, on those two."""
    spec, right, wrong = CONSTRAINTS[what]
    member_nodes(member1=[*wrong, right])
    post_gang(member1, namespace, "gang", 2, cpu="3", **spec)
    never_bound(member1, namespace, "gang", "gang-0", "gang-1")
    assert "largest fit 1 of 2 pods" in wait_event(member1, namespace, "gang", "GangDoesNotFit")

    with Stopwatch(f"{what}: from the second node to the last binding", "1 s"):
        second = member1.add_nodes(right)
        wait_landed(member1, namespace, "gang", 2)
    assert set(nodes_of(member1, namespace).values()) >= set(second)
    assert len(set(nodes_of(member1, namespace).values())) == 2


@pytest.mark.parametrize("why", ["cordoned", "not ready", "unknown"])
def test_a10_nodes_that_are_cordoned_or_not_ready_do_not_count(
    fleet: Fleet, member1: Cluster, namespace: str, member_nodes: SetNodes, why: str
) -> None:
    """Honour unschedulable and NotReady nodes, also before anybody has tainted them."""
    nodes = member_nodes(member1=[four_cpus(2)])["member1"]
    fleet.processes["member1/kwok"].stop()  # it would make the node Ready again
    path = f"/api/v1/nodes/{nodes[0]}"
    if why == "cordoned":
        patch(member1, path, {"spec": {"unschedulable": True}})
    else:
        status = "False" if why == "not ready" else "Unknown"
        set_ready(member1, nodes[0], status)
    post_gang(member1, namespace, "gang", 2, cpu="3")
    never_bound(member1, namespace, "gang", "gang-0", "gang-1")
    with Stopwatch("from the node's return to the last binding", "1 s"):
        if why == "cordoned":
            patch(member1, path, {"spec": {"unschedulable": False}})
        else:
            set_ready(member1, nodes[0], "True")
        wait_landed(member1, namespace, "gang", 2)


def set_ready(member: Cluster, node: str, status: str) -> None:
    """The condition as a node-lifecycle controller sets it."""
    found = member.get(f"/api/v1/nodes/{node}")
    conditions = [
        each | {"status": status} if each["type"] == "Ready" else each for each in found["status"]["conditions"]
    ]
    patch(member, f"/api/v1/nodes/{node}/status", {"status": {"conditions": conditions}})


def test_a10_host_ports_of_members_and_of_others(member1: Cluster, namespace: str, member_nodes: SetNodes) -> None:
    """Fit per node: two pods of one host port never share a node, whatever room it has; another IP or protocol may."""
    member_nodes(member1=[NodeShape(count=3, cpu="16", gpus=0)])
    with posting(member1) as post:
        other = plain_pod(namespace, "other", cpu="1")
        other["spec"]["containers"][0]["ports"] = PORT
        post(other)
        wait_for("it runs", lambda: bound(member1, namespace) == ["other"], GENEROUS)
        udp = plain_pod(namespace, "udp", cpu="1")
        udp["spec"]["containers"][0]["ports"] = [PORT[0] | {"protocol": "UDP"}]
        post(udp)
        post(pod_group(namespace, "gang", 3))
        for index in range(3):
            pod = gang_pod(namespace, "gang", index, cpu="1")
            pod["spec"]["containers"][0]["ports"] = PORT
            post(pod)
        never_bound(member1, namespace, "gang", "gang-0", "gang-1", "gang-2")
    delete_pods(member1, namespace, "other")
    wait_landed(member1, namespace, "gang", 3)
    assert len(set(nodes_of(member1, namespace, "gang-").values())) == 3


@pytest.mark.long
def test_a10_a_gang_that_needs_every_node_lands_though_nodes_are_sampled(
    member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    """Fit per node: of 130 feasible nodes kube-scheduler offers 100 to each pod of the default profile, and the planned
    one may be missing. Slots of a class are swapped, and the gang of 130 whole nodes lands."""
    nodes = member_nodes(member1=[four_cpus(130)])["member1"]
    swaps = metric(member1, "muster_plan_changes_total", change="swapped")
    moves = metric(member1, "muster_plan_changes_total", change="moved")
    with Stopwatch("130 pods of one gang on 130 nodes, 100 of them offered"):
        post_gang(member1, namespace, "gang", 130, cpu="3", schedulerName="default-scheduler")
        wait_landed(member1, namespace, "gang", 130)
    print(
        f"\n  slots swapped: {metric(member1, 'muster_plan_changes_total', change='swapped') - swaps:.0f},"
        f" moved: {metric(member1, 'muster_plan_changes_total', change='moved') - moves:.0f}"
    )
    assert set(nodes_of(member1, namespace).values()) == set(nodes)
    assert_bound_once(bindings_posted(member1, namespace))


def test_a12_unlike_roles(member1: Cluster, namespace: str, member_nodes: SetNodes) -> None:
    """Unlike roles: Master on a CPU node, workers on GPU nodes, in one gang, though the Master comes first and would
    fit on a GPU node too; hard-to-place members first."""
    names = member_nodes(
        member1=[
            NodeShape(count=2, cpu="4", gpus=2, prefix="gpu"),
            NodeShape(count=1, cpu="4", gpus=0, prefix="cpu"),
        ]
    )["member1"]
    assert names == ["gpu-0", "gpu-1", "cpu-0"]
    with posting(member1) as post:
        post(pod_group(namespace, "train", 3))
        post(gang_pod(namespace, "train", 0, cpu="3"))
        for index in (1, 2):
            worker = gang_pod(namespace, "train", index, cpu="2")
            worker["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": "2"}
            post(worker)
    wait_landed(member1, namespace, "train", 3)
    placed = nodes_of(member1, namespace)
    assert placed["train-0"] == "cpu-0"
    assert {placed["train-1"], placed["train-2"]} == {"gpu-0", "gpu-1"}


def test_a12_a_hard_packing_of_unlike_roles(member1: Cluster, namespace: str, member_nodes: SetNodes) -> None:
    """Unlike roles: 7 CPUs on one node and 5 on the other hold 4+3 and 3+2, and nothing else does."""
    member_nodes(
        member1=[NodeShape(count=1, cpu="7", gpus=0, prefix="a"), NodeShape(count=1, cpu="5", gpus=0, prefix="b")]
    )
    with posting(member1) as post:
        post(pod_group(namespace, "train", 4))
        for index, cpu in enumerate(["2", "3", "3", "4"]):
            post(gang_pod(namespace, "train", index, cpu=cpu))
    wait_landed(member1, namespace, "train", 4)
    assert_no_node_overcommitted(member1, requested_cpu)


def spread(namespace: str, what: str) -> Json:
    """Rules of a gang's members about each other: one per node, or even over two zones."""
    selector = {"matchLabels": {"scheduling.x-k8s.io/pod-group": "gang"}}
    if what == "anti-affinity":
        term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
        return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    if what == "affinity":
        term = {"topologyKey": "zone", "labelSelector": selector}
        return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    return {
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
        ]
    }


ZONES = [
    NodeShape(count=1, cpu="16", gpus=0, prefix="a", labels={"zone": "a"}),
    NodeShape(count=1, cpu="2", gpus=0, prefix="b", labels={"zone": "b"}),
]
COUPLED = {
    # rule: (nodes, size that does not fit, what is added, where the pods are in the end)
    "anti-affinity": (ZONES, 3, NodeShape(count=1, cpu="2", gpus=0, prefix="c"), {"a": 1, "b": 1, "c": 1}),
    # two pods of 2 CPUs in zone a, one in b, skew 1; the fourth needs b again, which is full
    "spread": (
        ZONES,
        4,
        NodeShape(count=1, cpu="2", gpus=0, prefix="c", labels={"zone": "b"}),
        {"a": 2, "b": 1, "c": 1},
    ),
    # all in one zone, and zone b has room for one
    "affinity": (
        [NodeShape(count=1, cpu="4", gpus=0, prefix="a", labels={"zone": "a"}), ZONES[1]],
        3,
        NodeShape(count=1, cpu="2", gpus=0, prefix="c", labels={"zone": "a"}),
        {"a": 2, "c": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", COUPLED)
def test_a13_members_constrain_each_other(member1: Cluster, namespace: str, member_nodes: SetNodes, rule: str) -> None:
    """Members constrain each other: required anti-affinity, spread and affinity among members, inside one plan."""
    nodes, size, more, where = COUPLED[rule]
    member_nodes(member1=nodes)
    post_gang(member1, namespace, "gang", size, cpu="2", **spread(namespace, rule))
    never_bound(member1, namespace, "gang", *(f"gang-{i}" for i in range(size)))
    assert f"largest fit {size - 1} of {size} pods" in wait_event(member1, namespace, "gang", "GangDoesNotFit")
    member1.add_nodes(more)
    wait_landed(member1, namespace, "gang", size)
    placed = [node.split("-")[0] for node in nodes_of(member1, namespace).values()]
    assert {prefix: placed.count(prefix) for prefix in set(placed)} == where
