"""Documents and small views for tests of the dispatcher's pure modules."""

import contextlib
from pathlib import Path
from typing import Any

import yaml

from dispatcher.job_reader import read_job
from dispatcher.jobs import Job
from dispatcher.member_objects import Identity
from dispatcher.placement import Member
from dispatcher.policies import Policy, read_policy
from dispatcher.queueing import Waiting
from dispatcher.quota import Ask, Ledger, ask_for
from dispatcher.quota_tree import Tree, read_tree
from kube.objects.binding import Component
from kube.objects.capacity import NodeShape
from kube.objects.nodes import Taint
from kube.objects.quantity import QuantityError
from kube.objects.resources import Resources, add_into, parse_resources

EXAMPLES = Path(__file__).parents[2] / "examples"
IDENTITY = Identity("hub-1", "pytorch-test-x7k2", 3)
ROOT, A, B = ("root",), ("root", "a"), ("root", "b")


def named(amounts: dict[str, Any]) -> dict[str, Any]:
    """Keyword names to resource names: `gpu` is nvidia.com/gpu."""
    return {"nvidia.com/gpu" if name == "gpu" else name: value for name, value in amounts.items()}


def example(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((EXAMPLES / name).read_text())
    return document


def template(**requests: Any) -> dict[str, Any]:
    resources = {"requests": named(requests)}
    return {"spec": {"containers": [{"name": "pytorch", "image": "registry.example/train:1", "resources": resources}]}}


def role(replicas: int | None = 1, **requests: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"restartPolicy": "Never", "template": template(**requests)}
    return spec if replicas is None else {"replicas": replicas, **spec}


def pytorchjob(
    name: str = "train",
    namespace: str = "default",
    *,
    master: Any = ...,
    worker: Any = ...,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Master with 1 CPU and two workers with 2 CPU each, unless told otherwise; None leaves a role out."""
    roles = {
        "Master": role(1, cpu=1) if master is ... else master,
        "Worker": role(2, cpu=2) if worker is ... else worker,
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}, "annotations": annotations or {}},
        "spec": {**spec, "pytorchReplicaSpecs": {key: value for key, value in roles.items() if value is not None}},
    }


def read(document: dict[str, Any]) -> Job:
    reading = read_job(document)
    assert reading.job is not None, reading.problems
    return reading.job


def a_job(*args: Any, **kwargs: Any) -> Job:
    return read(pytorchjob(*args, **kwargs))


def problems(document: dict[str, Any]) -> list[str]:
    reading = read_job(document)
    assert (reading.job is None) == bool(reading.problems)
    return [problem.message for problem in reading.problems]


def policy_document(
    *selectors: dict[str, Any], name: str = "policy", namespace: str = "default", **spec: Any
) -> dict[str, Any]:
    """Selects every PyTorchJob of its namespace, as gangs, unless told otherwise."""
    chosen = [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", **selector} for selector in selectors or ({},)]
    placement = {
        "replicaScheduling": {"replicaSchedulingType": "Divided", "customSchedulingType": "Gang"},
        **spec.pop("placement", {}),
    }
    return {
        "apiVersion": "policy.one.alibabacloud.com/v1alpha1",
        "kind": "PropagationPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"resourceSelectors": chosen, "placement": placement, **spec},
    }


def a_policy(*selectors: dict[str, Any], **kwargs: Any) -> Policy:
    reading = read_policy(policy_document(*selectors, **kwargs))
    assert reading.policy is not None, reading.problems
    return reading.policy


def shape(
    nodes: int, labels: dict[str, str] | None = None, taints: list[Taint] | None = None, **free: Any
) -> NodeShape:
    amounts = {name: str(value) for name, value in named({"pods": 110, "memory": "64Gi", **free}).items()}
    return NodeShape(nodes=nodes, free=amounts, labels=labels or {}, taints=taints or [])


def a_member(name: str, *shapes: NodeShape, **kwargs: Any) -> Member:
    free: Resources = {}
    for each in shapes:
        with contextlib.suppress(QuantityError):
            add_into(free, parse_resources(each.free), each.nodes)
    known = {"ready": True, "report_age": 1.0, "dialect": "training-operator", "free": free, **kwargs}
    return Member(name=name, shapes=shapes, **known)


def quota_node(name: str, *children: Any, namespaces: list[str] | None = None, **amounts: Any) -> dict[str, Any]:
    """Amounts: min and max, written as maps."""
    node: dict[str, Any] = {"name": name, **amounts}
    if namespaces is not None:
        node["namespaces"] = namespaces
    if children:
        node["children"] = list(children)
    return node


def tree_document(root: Any, namespace: str = "kube-system", name: str = "elasticquotatree") -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1beta1",
        "kind": "ElasticQuotaTree",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"root": root},
    }


def a_tree(root: Any) -> Tree:
    reading = read_tree(tree_document(root))
    assert reading.tree is not None, reading.problems
    return reading.tree


def a_ledger(root: Any) -> Ledger:
    return Ledger(a_tree(root))


def an_ask(path: tuple[str, ...], *, preemptible: bool = True, **amounts: int) -> Ask:
    """Amounts as counted: cpu in millicores."""
    return ask_for(path, named(amounts), preemptible=preemptible)


def a_waiting(
    name: str, ask: Ask | None = None, *, priority: int = 0, at: str = "t1", gpu: int = 1, pods: int = 1, **kwargs: Any
) -> Waiting:
    component = Component(name="worker", replicas=pods, min_replicas=pods, request={"nvidia.com/gpu": str(gpu)})
    return Waiting(
        binding_id=name, namespace="ns", name=name, ask=ask, components=(component,), min_member=pods,
        priority=priority, queued_at=at, **kwargs,
    )  # fmt: skip


def two_leaves(a: Any = None, b: Any = None, **root: int) -> Any:
    """root with leaves a and b; keywords are the root's min and max."""
    limits: dict[str, Any] = {"min": root, "max": root}
    return quota_node("root", quota_node("a", **(a or {})), quota_node("b", **(b or {})), **limits)
