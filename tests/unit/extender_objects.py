"""Builders of small Kubernetes objects for the extender's tests."""

from typing import Any

import msgspec

from extender.eligible import Eligible
from extender.ledger import Ledger
from kube.objects.node_predicates import node_view
from kube.objects.nodes import Node
from kube.objects.pod_class import PodClass, pod_class
from kube.objects.pod_group import PodGroup
from kube.objects.pods import Pod
from kube.objects.reservation import GangReservation

GPU = "nvidia.com/gpu"
HUB = "hub-1"


def node(
    name: str,
    cpu: int = 8,
    memory: str = "32Gi",
    gpu: int = 0,
    pods: int = 110,
    *,
    labels: dict[str, str] | None = None,
    taints: list[dict[str, str]] | None = None,
    ready: bool = True,
    unschedulable: bool = False,
) -> Node:
    allocatable: dict[str, Any] = {"cpu": str(cpu), "memory": memory, "pods": pods}
    if gpu:
        allocatable[GPU] = gpu
    return msgspec.convert(
        {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
            "spec": {"unschedulable": unschedulable, "taints": taints or []},
            "status": {
                "allocatable": allocatable,
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            },
        },
        Node,
    )


def pod(
    name: str,
    uid: str = "",
    *,
    namespace: str = "default",
    cpu: str = "1",
    memory: str = "1Gi",
    gpu: int = 0,
    node: str = "",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    phase: str = "",
    deleting: bool = False,
    nominated: str = "",
    priority: int | None = None,
    owner_kind: str = "",
    spec: dict[str, Any] | None = None,
) -> Pod:
    requests: dict[str, Any] = {"cpu": cpu, "memory": memory}
    if gpu:
        requests[GPU] = gpu
    owners = [{"kind": owner_kind, "name": "owner", "controller": True}] if owner_kind else []
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": uid or f"uid-{name}",
                "labels": labels or {},
                "annotations": annotations or {},
                "ownerReferences": owners,
                **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {}),
            },
            "spec": {
                "containers": [{"name": "c", "resources": {"requests": requests}}],
                "nodeName": node,
                "priority": priority,
                **(spec or {}),
            },
            "status": {"phase": phase or ("Running" if node else "Pending"), "nominatedNodeName": nominated},
        },
        Pod,
    )


def member(name: str, group: str = "train", **kwargs: Any) -> Pod:
    """A pod of a user's PodGroup."""
    labels = {"scheduling.x-k8s.io/pod-group": group, **kwargs.pop("labels", {})}
    return pod(name, labels=labels, **kwargs)


def pod_group(
    name: str = "train",
    minimum: int = 0,
    *,
    namespace: str = "default",
    timeout: int | None = None,
    annotations: dict[str, str] | None = None,
) -> PodGroup:
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": namespace, "resourceVersion": "1", "annotations": annotations},
            "spec": {"minMember": minimum, "scheduleTimeoutSeconds": timeout},
        },
        PodGroup,
    )


def template(cpu: str = "1", memory: str = "1Gi", gpu: int = 0, **spec: Any) -> dict[str, Any]:
    requests: dict[str, Any] = {"cpu": cpu, "memory": memory}
    if gpu:
        requests[GPU] = gpu
    return {
        "metadata": {"labels": {}},
        "spec": {"containers": [{"name": "c", "resources": {"requests": requests}}], **spec},
    }


def reservation(
    job: str = "job",
    epoch: int = 1,
    *,
    state: str = "Pending",
    roles: list[dict[str, Any]] | None = None,
    minimum: int | None = None,
    status: dict[str, Any] | None = None,
    version: str = "1",
    **spec: Any,
) -> GangReservation:
    """Master 1 x (1 cpu), worker 2 x (2 cpu) unless said otherwise."""
    if roles is None:
        roles = [
            {"name": "master", "count": 1, "minCount": 1, "template": template(cpu="1")},
            {"name": "worker", "count": 2, "minCount": 2, "template": template(cpu="2")},
        ]
    return msgspec.convert(
        {
            "metadata": {
                "name": f"id-{job}-{epoch}",
                "namespace": "muster-system",
                "resourceVersion": version,
                "uid": f"uid-res-{job}-{epoch}",
            },
            "spec": {
                "hubID": HUB,
                "id": f"id-{job}",
                "epoch": epoch,
                "jobNamespace": "default",
                "jobName": job,
                "state": state,
                "roles": roles,
                "minMember": sum(role["minCount"] for role in roles) if minimum is None else minimum,
                **spec,
            },
            "status": status or {},
        },
        GangReservation,
    )


def hub_pod(job: str, role: str, index: int = 0, epoch: int = 1, **kwargs: Any) -> Pod:
    cpu = kwargs.pop("cpu", "1" if role == "master" else "2")
    return pod(
        f"{job}-{role}-{index}",
        labels={"muster.dev/role": role, "scheduling.x-k8s.io/pod-group": job},
        annotations={"muster.dev/hub-id": HUB, "muster.dev/id": f"id-{job}", "muster.dev/epoch": str(epoch)},
        cpu=cpu,
        **kwargs,
    )


def class_of(each: Pod, **kwargs: Any) -> PodClass:
    return pod_class(each.metadata.namespace, each.metadata.labels, each.spec, **kwargs)


def cluster(*nodes: Node) -> tuple[Ledger, Eligible]:
    ledger = Ledger()
    for each in nodes:
        ledger.set_node(node_view(each))
    return ledger, Eligible(ledger)
