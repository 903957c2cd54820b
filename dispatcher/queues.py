"""Queue and QueueUnit objects (scheduling.x-k8s.io/v1alpha1) as they should be: Kube Queue's view of our state.

They are views: written from the tree and the bindings, repaired when edited, and never read back as truth, but for the
user's settings on a Queue (policy, priority, annotations).
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dispatcher.queueing import QueueSettings, Waiting
from dispatcher.quota_tree import Tree
from kube.objects.binding import ResourceBinding
from kube.objects.meta import Json


class QueueChanges(msgspec.Struct, frozen=True, kw_only=True):
    create: tuple[Json, ...] = ()
    update: tuple[Json, ...] = ()
    """Whole objects with resourceVersion, for PUT."""
    delete: tuple[str, ...] = ()
    """Names."""


def queue_name(path: Sequence[str]) -> str:
    """"root-child-2-v5zxz": path in lower case, "/" and "_" to "-", then five characters that a hash of the path
    determines (K15). At most 63 characters, a DNS label."""
    raise NotImplementedError


def desired_queues(tree: Tree) -> list[Json]:
    """One per node, root and parents included."""
    raise NotImplementedError


def queue_changes(tree: Tree, existing: Iterable[Json]) -> QueueChanges:
    """What to write. Hand-made queues (without our label) are left alone; users' own annotations and spec kept."""
    raise NotImplementedError


def queue_settings(queue: Json) -> QueueSettings:
    """What the user set on a Queue; unknown policies count as Priority."""
    raise NotImplementedError


def queue_items(waiting: Sequence[Waiting], limit: int = 100) -> Json:
    """status.queueItemDetails: {"active": [{name, namespace, priority, position}]}, positions from 1."""
    raise NotImplementedError


def queue_unit_name(binding_name: str) -> str:
    """`<binding>-rb-qu`."""
    raise NotImplementedError


class UnitState(msgspec.Struct, frozen=True):
    phase: str
    """Enqueued, Reserved, Dequeued, Running, Succeed, Failed or TimeoutBackoff."""
    message: str


def unit_state(binding: ResourceBinding) -> UnitState:
    """Phase and message of a binding's QueueUnit."""
    raise NotImplementedError


def desired_queue_unit(binding: ResourceBinding, *, job_labels: Mapping[str, str] | None = None) -> Json:
    """QueueUnit with spec and status (written separately: status is a subresource). Owned by the job."""
    raise NotImplementedError
