"""PriorityClass (scheduling.k8s.io/v1) and RuntimeClass (node.k8s.io/v1): what admission puts into a pod."""

import msgspec

from kube.objects.meta import ObjectMeta


class PriorityClass(msgspec.Struct, rename="camel"):
    metadata: ObjectMeta
    value: int = 0
    global_default: bool = False
    preemption_policy: str | None = None


class Overhead(msgspec.Struct, rename="camel"):
    pod_fixed: dict[str, str | int | float] | None = None


class RuntimeClassScheduling(msgspec.Struct, rename="camel"):
    node_selector: dict[str, str] | None = None


class RuntimeClass(msgspec.Struct):
    metadata: ObjectMeta
    handler: str = ""
    overhead: Overhead | None = None
    scheduling: RuntimeClassScheduling | None = None
