"""The steps that `dispatcher.attempts` can ask for. Each is one write or one read, and safe to repeat.

`Record` steps are decisions: a PUT of the binding with the resourceVersion it was decided on (rule 1). Everything
else acts on a decision already recorded, or looks.
"""

from typing import Literal

import msgspec

from kube.objects.binding import BindingSpec

Change = Literal[
    "Rejoined",  # the same job under a new metadata.uid (a restored backup)
    "Refreshed",  # components, priority, policy or quota follow an edit of a waiting job
    "EpochRaised",  # objects with a higher epoch were seen: new epochs start above it (rule 18)
    "Adopted",  # a copy that the binding had forgotten is taken up again (rule 18)
    "Reserving",
    "Requeued",  # an attempt given up before Scheduled
    "Scheduled",
    "Landed",
    "Evicting",
    "Released",
    "Finished",
    "FinishReleased",
    "Deleting",
]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    change: Change
    spec: BindingSpec
    why: str = ""
    """For people: what led to it."""
    exclude: str = ""
    """Member not to ask again for a while because of this."""


class CreateBinding(msgspec.Struct, frozen=True):
    """POST a binding with a new id. AlreadyExists: read it and decide again."""


class StampJob(msgspec.Struct, frozen=True):
    """Annotation muster.dev/id and finalizer muster.dev/cleanup on the hub's job."""


class ReadHubJob(msgspec.Struct, frozen=True):
    """GET the hub's job: only that proves it gone (rule 6)."""


class ReadBinding(msgspec.Struct, frozen=True):
    """GET the binding: only that proves it gone (rule 6)."""


class RemoveBinding(msgspec.Struct, frozen=True):
    """DELETE with uid and resourceVersion: nothing of the job is left."""


class RemoveFinalizer(msgspec.Struct, frozen=True):
    """From the hub's job; only after its binding is gone."""


class ExpireJob(msgspec.Struct, frozen=True):
    """DELETE the hub's job: its ttlSecondsAfterFinished has run out (rule 9)."""

    uid: str


class ReadLive(msgspec.Struct, frozen=True):
    """GET reservation, copy, PodGroup; LIST pods: in this order, past every cache."""

    cluster: str


class PostReservation(msgspec.Struct, frozen=True):
    cluster: str
    epoch: int


class RenewReservation(msgspec.Struct, frozen=True):
    cluster: str
    epoch: int
    resource_version: str
    renewals: int


class SetDispatched(msgspec.Struct, frozen=True):
    cluster: str
    epoch: int
    resource_version: str


class Dispatch(msgspec.Struct, frozen=True):
    """POST namespace, dependencies, PodGroup, job: in this order, each only if missing (rule 2)."""

    cluster: str
    epoch: int


class DeleteReservation(msgspec.Struct, frozen=True):
    cluster: str
    epoch: int
    uid: str
    resource_version: str


class DeleteCopy(msgspec.Struct, frozen=True):
    """With uid and resourceVersion of the read that showed it unfinished, or its end recorded (rule 4)."""

    cluster: str
    uid: str
    resource_version: str


class DeletePodGroup(msgspec.Struct, frozen=True):
    cluster: str
    uid: str
    resource_version: str


class AwaitAdmission(msgspec.Struct, frozen=True):
    """Nothing stands in the way of an attempt: queue, quota and room decide when."""


Reason = Literal[
    "Nothing", "Invalid", "Suspended", "Held", "NoPolicy", "StrayPods", "AwaitingAnswer", "Unreachable", "Running",
    "Ending", "PodsEnding", "WorkersRunning", "Finished",
]  # fmt: skip


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    reason: Reason
    message: str = ""
    wake_after: float | None = None
    """Seconds after which to look again without any event; None: an event will tell."""


MemberStep = (
    ReadLive
    | PostReservation
    | RenewReservation
    | SetDispatched
    | Dispatch
    | DeleteReservation
    | DeleteCopy
    | DeletePodGroup
)
HubStep = Record | CreateBinding | StampJob | ReadHubJob | ReadBinding | RemoveBinding | RemoveFinalizer | ExpireJob
Step = MemberStep | HubStep | AwaitAdmission | Wait
