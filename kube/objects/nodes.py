"""Nodes as the watch delivers them: only what placement reads (core/v1 Node)."""

import msgspec

from kube.objects.meta import ObjectMeta


class Taint(msgspec.Struct, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(msgspec.Struct, rename="camel"):
    unschedulable: bool = False
    taints: list[Taint] | None = None


class NodeCondition(msgspec.Struct):
    type: str = ""
    status: str = ""


class NodeStatus(msgspec.Struct):
    allocatable: dict[str, str | int | float] | None = None
    capacity: dict[str, str | int | float] | None = None
    conditions: list[NodeCondition] | None = None


class Node(msgspec.Struct):
    metadata: ObjectMeta
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)

    @property
    def ready(self) -> bool:
        """The Ready condition is "True". A node that never reported one is not ready."""
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions or ())
