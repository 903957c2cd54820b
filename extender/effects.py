"""What the core asks its shell to do: typed, plain data, in the order it should happen.

An effect is a request, never a fact: whatever comes of it returns through `Core` (`posted`, `recheck_done`, the watch
feed). Effects may be lost with the process; a restarted core asks again from what the API shows.
"""

from enum import StrEnum

import msgspec

from kube.objects.pod_group import PodGroupStatus
from kube.objects.reservation import ReservationStatus


class Outcome(StrEnum):
    """What became of one POST of a Binding (`Core.posted`)."""

    BOUND = "Bound"
    """201."""
    ALREADY_THERE = "AlreadyThere"
    """409 (or a read after it) shows this UID on this very node: success (k8s#96579)."""
    CONFLICT = "Conflict"
    """409 for another reason: the pod is on another node, deleting or gated. Nothing was bound by this POST."""
    GONE = "Gone"
    """404, or the UID precondition failed: this pod no longer exists."""
    NOT_SENT = "NotSent"
    """The time fence or leadership forbade the POST, or no connection was made. Certainly nothing happened."""
    REJECTED = "Rejected"
    """Any other answer that certainly bound nothing (403, 422, 429, 5xx before processing)."""
    UNKNOWN = "Unknown"
    """Sent, no answer (timeout, connection lost, 5xx): it may have bound, or still bind."""


class PodRef(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    uid: str


class ObjectRef(msgspec.Struct, frozen=True, kw_only=True):
    """involvedObject of an event."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str = ""


class BindCall(msgspec.Struct, frozen=True, kw_only=True):
    """One open bind request of kube-scheduler."""

    id: int
    """Unique within the process."""
    uid: str
    namespace: str
    name: str
    node: str
    deadline: float
    """Monotonic second at which kube-scheduler gives up (arrival + the entry's httpTimeout)."""


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """One POST to pods/NAME/binding with metadata.uid as precondition."""

    uid: str
    namespace: str
    name: str
    node: str
    deadline: float
    """The time fence: of the held call; after `deadline - POST timeout` it must not be sent any more."""


class PostBindings(msgspec.Struct, frozen=True, kw_only=True):
    """POST all of these at once, in parallel; report each with `Core.posted`."""

    bindings: tuple[Binding, ...]
    gang: str = ""
    """Key of the gang for logs, "" for an ordinary pod."""


class AnswerBind(msgspec.Struct, frozen=True):
    """Reply to the held call; "" is success. Sent at most once per call id."""

    call_id: int
    error: str = ""


class Recheck(msgspec.Struct, frozen=True, kw_only=True):
    """Before a commit: read these live, feed what was read through the ordinary feed methods, then call
    `Core.recheck_done(gang, token, failure, now)`. `failure` "" means every read was answered (NotFound is an answer:
    feed the deletion)."""

    gang: str
    token: int
    nodes: tuple[str, ...]
    pod_group: tuple[str, str] | None = None
    """(namespace, name)."""
    reservation: tuple[str, str] | None = None
    """(namespace, name)."""


class SetReservationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """PUT status with the resourceVersion the decision was made on (PROTOCOL rule 13). On conflict do nothing: the
    newer object comes through the feed and is judged again."""

    namespace: str
    name: str
    resource_version: str
    status: ReservationStatus


class SetPodGroupStatus(msgspec.Struct, frozen=True, kw_only=True):
    """PUT status with resourceVersion; on conflict do nothing, the newer object is judged again."""

    namespace: str
    name: str
    resource_version: str
    status: PodGroupStatus


class WakePods(msgspec.Struct, frozen=True, kw_only=True):
    """Patch annotation `muster.dev/wake` of these waiting pods, so that kube-scheduler asks again. Best effort."""

    pods: tuple[PodRef, ...]
    reason: str


class EvictPods(msgspec.Struct, frozen=True, kw_only=True):
    """Evict through the Eviction API (a UID precondition each); retried by the core while pods remain."""

    gang: str
    pods: tuple[PodRef, ...]
    reason: str


class RecordEvent(msgspec.Struct, frozen=True, kw_only=True):
    ref: ObjectRef
    type: str
    """Normal or Warning."""
    reason: str
    message: str


Effect = (
    PostBindings | AnswerBind | Recheck | SetReservationStatus | SetPodGroupStatus | WakePods | EvictPods | RecordEvent
)
