"""Who is a gang: ACK's labels without any object, native groups that are left alone, and gangs of the hub, whose
reservation is compared with what admission makes of the first real pod."""

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from hack.fleet.fleet import Cluster, Fleet, wait_for
from tests.fleet.conftest import SetNodes
from tests.fleet.gang_stories import (
    applied,
    ask_bind,
    ask_filter,
    dispatch,
    four_cpus,
    hub_pod,
    nodes_of,
    pod_template,
    post_gang,
    reservation,
    reserved,
    wait_held,
    wait_refused,
    wait_reservation,
)
from tests.fleet.stories import (
    GENEROUS,
    Json,
    assert_bound_once,
    assert_no_node_overcommitted,
    bindings_posted,
    bound,
    plain_pod,
    posting,
    requested_cpu,
    wait_landed,
)

ACK = "pod-group.scheduling.sigs.k8s.io"


def test_labels_of_ack_make_a_gang_without_an_object(member1: Cluster, namespace: str, member_nodes: SetNodes) -> None:
    """name and min-available on the pods are all there is: two wait for the third, which lands all."""
    member_nodes(member1=[four_cpus(3)])
    labels = {f"{ACK}/name": "train", f"{ACK}/min-available": "3"}
    with posting(member1) as post:
        for index in range(2):
            post(plain_pod(namespace, f"train-{index}", cpu="3", labels=labels))
        wait_held(member1, 2)
        assert bound(member1, namespace) == []
        post(plain_pod(namespace, "train-2", cpu="3", labels=labels))
    wait_landed(member1, namespace, "train", 3)
    assert_bound_once(bindings_posted(member1, namespace))


def test_labels_of_ack_hold_nothing_for_a_gang_that_does_not_fit(
    member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    member_nodes(member1=[four_cpus(2)])
    labels = {f"{ACK}/name": "train", f"{ACK}/min-available": "3"}
    with posting(member1) as post:
        for index in range(3):
            post(plain_pod(namespace, f"train-{index}", cpu="3", labels=labels))
        wait_refused(member1, namespace, "train-0", "train-1", "train-2")
        for index in range(2):
            post(plain_pod(namespace, f"plain-{index}", cpu="3"))
        wait_for("others land", lambda: len(bound(member1, namespace)) == 2, GENEROUS)
    assert bound(member1, namespace, "train-") == []


def test_a_native_group_is_passed_through(member1: Cluster, namespace: str, member_nodes: SetNodes) -> None:
    """A pod with spec.schedulingGroup (KEP-4671) belongs to kube-scheduler: every node comes back, also those promised
    to a gang of ours, though the pod wears our label too; its bind is not held.

    The API server drops the field while its feature gate is off, so the extender is asked as kube-scheduler would.
    """
    nodes = member_nodes(member1=[four_cpus(2)])["member1"]
    with posting(member1) as post:
        post_gang(member1, namespace, "gang", 1, minimum=2, cpu="3")
        wait_held(member1, 1)
        labelled = plain_pod(namespace, "one", cpu="3", labels={"scheduling.x-k8s.io/pod-group": "gang"})
        labelled["metadata"]["uid"] = str(uuid.uuid4())
        native = {**labelled, "spec": labelled["spec"] | {"schedulingGroup": {"podGroupName": "gang"}}}
        answer = ask_filter(member1, native, nodes)
        assert answer["NodeNames"] == nodes
        assert answer["Error"] == ""
        assert not answer["FailedNodes"]
        assert not answer["FailedAndUnresolvableNodes"]
        ours = {**labelled, "metadata": labelled["metadata"] | {"name": "two", "uid": str(uuid.uuid4())}}
        assert len(ask_filter(member1, ours, nodes)["NodeNames"]) == 1, "as a member of ours: one node"
        post(plain_pod(namespace, "real", cpu="1", schedulerName="nobody"))
        pod = member1.get(f"/api/v1/namespaces/{namespace}/pods/real")
        pod["spec"]["schedulingGroup"] = {"podGroupName": "gang"}
        assert ask_filter(member1, pod, nodes)["NodeNames"] == nodes
        assert ask_bind(member1, pod, nodes[0]) == ""
    assert nodes_of(member1, namespace) == {"real": nodes[0]}


# --- reservations, compared with the first real pod ------------------------------------------------------------


@contextlib.contextmanager
def attempt(fleet: Fleet, member: Cluster, namespace: str, count: int, cpu: str, **spec: Any) -> Iterator[str]:
    """A reservation of `count` workers of `cpu`, Reserved and then dispatched; yields its name."""
    wanted = reservation(namespace, "train", {"worker": (count, pod_template(cpu=cpu, **spec))})
    with reserved(member, wanted) as name:
        wait_reservation(member, name, "Reserved")
        dispatch(fleet, member, name)
        yield name


def post_workers(member: Cluster, namespace: str, count: int, cpu: str, **spec: Any) -> list[Json]:
    """What the training operator makes of the job, as admission leaves it."""
    with posting(member) as post:
        return [post(hub_pod(namespace, "train", "worker", index, cpu=cpu, **spec)) for index in range(count)]


def test_a_dispatched_gang_keeps_its_room_and_lands(
    fleet: Fleet, member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    """The room is kept before there is any pod; pods of another epoch are not let in."""
    member_nodes(member1=[four_cpus(2)])
    with attempt(fleet, member1, namespace, 2, "3") as name, posting(member1) as post:
        post(plain_pod(namespace, "plain", cpu="3"))
        post(hub_pod(namespace, "train", "worker", 7, cpu="3", epoch=2))
        wait_refused(member1, namespace, "plain", "train-worker-7")
        post_workers(member1, namespace, 2, "3")
        status = wait_reservation(member1, name, "Landed")
    assert bound(member1, namespace) == ["train-worker-0", "train-worker-1"]
    assert sorted((each["role"], each["count"]) for each in status["placements"]) == [("worker", 1), ("worker", 1)]
    assert_bound_once(bindings_posted(member1, namespace))


def with_sidecar(namespace: str) -> dict[str, Json]:
    """A MutatingAdmissionPolicy that adds a container of 1 CPU to each pod there, as a mesh's webhook does."""
    name = f"{namespace}-sidecar"
    return {
        "mutatingadmissionpolicies": {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "reinvocationPolicy": "Never",
                "matchConstraints": {
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                    "resourceRules": [
                        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
                    ],
                },
                "mutations": [
                    {
                        "patchType": "JSONPatch",
                        "jsonPatch": {
                            "expression": '[JSONPatch{op: "add", path: "/spec/containers/-", value: '
                            'Object.spec.containers{name: "proxy", image: "registry.example/proxy:1", '
                            'resources: Object.spec.containers.resources{requests: {"cpu": "1"}}}}]'
                        },
                    }
                ],
            },
        },
        "mutatingadmissionpolicybindings": {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name},
        },
    }


def wait_mutated(member: Cluster, namespace: str) -> None:
    """The policy is in force."""

    def has_sidecar() -> bool:
        with contextlib.closing(member.rest()) as rest:
            pod = rest.post(f"/api/v1/namespaces/{namespace}/pods?dryRun=All", plain_pod(namespace, "probe"))
        return len(pod["spec"]["containers"]) == 2

    wait_for("the sidecar is added", has_sidecar, GENEROUS)


def test_a_sidecar_that_admission_adds_is_planned_for(
    fleet: Fleet, member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    """The reservation knows of 2 CPUs per pod, two of which fit a node of 4; real pods take 3 and need a node each."""
    member_nodes(member1=[four_cpus(2)])
    with attempt(fleet, member1, namespace, 2, "2") as name, applied(member1, with_sidecar(namespace)):
        wait_mutated(member1, namespace)
        pods = post_workers(member1, namespace, 2, "2")
        assert [len(pod["spec"]["containers"]) for pod in pods] == [2, 2]
        wait_reservation(member1, name, "Landed")
    assert len(set(nodes_of(member1, namespace).values())) == 2
    assert_no_node_overcommitted(member1, requested_cpu)


def test_a_promise_that_real_pods_do_not_fit_is_refused_in_numbers(
    fleet: Fleet, member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    """With the sidecar only one of the two fits: the hub is told, and nothing is bound or held."""
    member_nodes(member1=[four_cpus(1)])
    with attempt(fleet, member1, namespace, 2, "2") as name, applied(member1, with_sidecar(namespace)):
        wait_mutated(member1, namespace)
        post_workers(member1, namespace, 2, "2")
        status = wait_reservation(member1, name, "Refused")
        assert status["reason"] == "PromiseBroken"
        assert status["message"] == "largest fit 1 of 2 pods: 1 short of cpu"
    with posting(member1) as post:
        small = plain_pod(namespace, "plain", cpu="3")
        post(small)
    wait_for("its room is free", lambda: bound(member1, namespace) == ["plain"], GENEROUS)


def test_defaults_of_a_limit_range_are_planned_for(
    fleet: Fleet, member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    """The template asks for nothing; the LimitRange makes that 3 CPUs per pod."""
    member_nodes(member1=[four_cpus(2)])
    limit = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "defaults"},
        "spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "3"}}]},
    }
    bare = {"containers": [{"name": "main", "image": "registry.example/main:1"}]}
    with contextlib.closing(member1.rest()) as rest:
        rest.post(f"/api/v1/namespaces/{namespace}/limitranges", limit)
    with attempt(fleet, member1, namespace, 2, "0", **bare) as name:
        pods = post_workers(member1, namespace, 2, "0", **bare)
        assert [pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] for pod in pods] == ["3", "3"]
        wait_reservation(member1, name, "Landed")
    assert len(set(nodes_of(member1, namespace).values())) == 2


@pytest.mark.parametrize("count", [2, 3])
def test_overhead_of_a_runtime_class_is_part_of_the_promise(
    fleet: Fleet, member1: Cluster, namespace: str, member_nodes: SetNodes, count: int
) -> None:
    """The template names a RuntimeClass; this member's has an overhead of 1 CPU, so 2 CPUs are 3: on two nodes of 4
    two pods fit, and three are refused before the hub dispatches anything."""
    member_nodes(member1=[four_cpus(2)])
    runtime = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": f"{namespace}-vm"},
        "handler": "vm",
        "overhead": {"podFixed": {"cpu": "1"}},
    }
    named = {"runtimeClassName": f"{namespace}-vm"}
    with applied(member1, {"runtimeclasses": runtime}):
        if count == 3:
            wanted = reservation(namespace, "train", {"worker": (3, pod_template(cpu="2", **named))})
            with reserved(member1, wanted) as name:
                status = wait_reservation(member1, name, "Refused")
                assert status["reason"] == "InsufficientResources"
                assert status["message"] == "largest fit 2 of 3 pods: 1 short of cpu"
            return
        with attempt(fleet, member1, namespace, 2, "2", **named) as name:
            post_workers(member1, namespace, 2, "2", **named)
            wait_reservation(member1, name, "Landed")
    assert len(set(nodes_of(member1, namespace).values())) == 2


@pytest.mark.parametrize("other", ["low", "high"])
def test_the_default_priority_class_is_part_of_the_promise(
    fleet: Fleet, member1: Cluster, namespace: str, member_nodes: SetNodes, other: str
) -> None:
    """The template says no priority; this member's default is 1000: a plain pod of 500 does not break the promise, one
    of 2000 does, and then the hub is told."""
    member_nodes(member1=[four_cpus(2)])
    with contextlib.ExitStack() as stack:
        for each, value in {"default": 1000, "low": 500, "high": 2000}.items():
            document = {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": f"{namespace}-{each}"},
                "value": value,
                "globalDefault": each == "default",
            }
            stack.enter_context(applied(member1, {"priorityclasses": document}))
        name = stack.enter_context(attempt(fleet, member1, namespace, 2, "3"))
        post = stack.enter_context(posting(member1))
        post(plain_pod(namespace, other, cpu="3", priorityClassName=f"{namespace}-{other}"))
        if other == "high":
            assert wait_reservation(member1, name, "Refused")["reason"] == "PromiseBroken"
            wait_for("it has the room", lambda: bound(member1, namespace) == ["high"], GENEROUS)
            return
        wait_refused(member1, namespace, "low")
        pods = post_workers(member1, namespace, 2, "3")
        assert [pod["spec"]["priority"] for pod in pods] == [1000, 1000]
        wait_reservation(member1, name, "Landed")
        assert bound(member1, namespace) == ["train-worker-0", "train-worker-1"]


def test_the_quota_of_the_namespace_is_part_of_the_promise(
    member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    """A10: pods that the namespace's ResourceQuota will not let be made are not promised room."""
    member_nodes(member1=[four_cpus(4)])
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"requests.cpu": "7"}},
    }
    with contextlib.closing(member1.rest()) as rest:
        rest.post(f"/api/v1/namespaces/{namespace}/resourcequotas", quota)

    def counted() -> bool:
        found = member1.get(f"/api/v1/namespaces/{namespace}/resourcequotas/small")
        return "requests.cpu" in found.get("status", {}).get("used", {})

    wait_for("the quota is counted", counted, GENEROUS)
    too_much = reservation(namespace, "big", {"worker": (3, pod_template(cpu="3"))})
    with reserved(member1, too_much) as name:
        status = wait_reservation(member1, name, "Refused")
        assert "quota small is short of requests.cpu" in status["message"]
    with reserved(member1, reservation(namespace, "small", {"worker": (2, pod_template(cpu="3"))})) as name:
        wait_reservation(member1, name, "Reserved")
