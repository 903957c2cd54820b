"""ClusterCapacity, muster.dev/v1alpha1: what a member can still hold, per node shape. Cluster-scoped, one per member.

Written by the extender on change, at most once a second. Quantities are canonical Kubernetes strings.
Age is counted by the hub on its own monotonic clock since the last observed heartbeat, never from a wall clock in here.
"""

import msgspec

from kube.objects.meta import ObjectMeta
from kube.objects.nodes import Taint


class NodeShape(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """`nodes` ready nodes that look alike: same quantised free vector (rounded down: cpu 100m, memory 256Mi, devices
    exact; key "pods" is free pod slots), same labels and taints that matter."""

    nodes: int
    free: dict[str, str]
    labels: dict[str, str] = {}
    taints: list[Taint] = []


class Included(msgspec.Struct, rename={"job_id": "id"}):
    """A reservation this report already counts as taken room."""

    job_id: str
    epoch: int


class CapacityStatus(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    total: dict[str, str] = {}
    """Allocatable of ready, schedulable nodes."""
    allocated: dict[str, str] = {}
    reserved: dict[str, str] = {}
    """Held for gangs whose pods are not bound yet."""
    free: dict[str, str] = {}
    nodes: int = 0
    shapes: list[NodeShape] = []
    """At most 256, the largest kept."""
    shapes_left_out: int = 0
    includes: list[Included] = []
    scheduler_name: str = ""
    """What pods of gangs should name: "muster" where the exact-plan profile is there, else "default-scheduler"."""
    sequence: int = 0
    """Raised with each report by one extender process."""


class ClusterCapacity(msgspec.Struct, rename="camel", kw_only=True):
    api_version: str = "muster.dev/v1alpha1"
    kind: str = "ClusterCapacity"
    metadata: ObjectMeta
    status: CapacityStatus = msgspec.field(default_factory=CapacityStatus)
