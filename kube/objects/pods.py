"""Pods as the watch delivers them: only the fields that scheduling decisions read (core/v1 Pod).

Decoding into these structs is what keeps a 20,000 pod list under half a second; a field that no rule
reads does not belong here. Absent and null are the same: lists are `None` or empty alike.
"""

import msgspec

from kube.objects.meta import Json, ObjectMeta


class ResourceRequirements(msgspec.Struct):
    """Quantities as written (string, int or float); null means absent."""

    requests: dict[str, str | int | float | None] | None = None
    limits: dict[str, str | int | float | None] | None = None


class ContainerPort(
    msgspec.Struct, rename={"host_port": "hostPort", "host_ip": "hostIP", "container_port": "containerPort"}
):
    container_port: int = 0
    host_port: int = 0
    host_ip: str = ""
    protocol: str = "TCP"


class Container(msgspec.Struct, rename="camel"):
    name: str = ""
    image: str = ""
    resources: ResourceRequirements | None = None
    ports: list[ContainerPort] | None = None
    restart_policy: str | None = None
    """"Always" on an init container makes it restartable (KEP-753)."""


class Toleration(msgspec.Struct, rename="camel", frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class SchedulingGate(msgspec.Struct, frozen=True):
    name: str = ""


class PodSpec(msgspec.Struct, rename="camel"):
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    resources: ResourceRequirements | None = None
    """Pod-level resources (KEP-2837)."""
    overhead: dict[str, str | int | float] | None = None
    node_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: Json | None = None
    tolerations: list[Toleration] | None = None
    topology_spread_constraints: list[Json] | None = None
    host_network: bool = False
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    runtime_class_name: str | None = None
    scheduler_name: str = ""
    scheduling_gates: list[SchedulingGate] | None = None
    scheduling_group: Json | None = None
    """Native gang membership (KEP-4671): such pods are passed through untouched."""


class PodCondition(msgspec.Struct, rename="camel"):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class ContainerStatus(msgspec.Struct, rename="camel"):
    name: str = ""
    allocated_resources: dict[str, str | int | float] | None = None
    """Set while a pod is resized in place (KEP-1287)."""
    resources: ResourceRequirements | None = None


class PodStatus(msgspec.Struct, rename="camel"):
    phase: str = ""
    reason: str = ""
    nominated_node_name: str = ""
    conditions: list[PodCondition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    resources: ResourceRequirements | None = None
    allocated_resources: dict[str, str | int | float] | None = None
    """Pod-level resources as actuated and allocated while resized in place (KEP-5419)."""


class Pod(msgspec.Struct):
    metadata: ObjectMeta
    spec: PodSpec
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def finished(self) -> bool:
        """Succeeded or Failed: charges nothing on its node (kube-scheduler assignedPod && !terminal)."""
        return self.status.phase in ("Succeeded", "Failed")
