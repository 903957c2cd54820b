"""The hub's job -> its copy in a member's dialect, with the PodGroup and the GangReservation that go with it.

"training-operator" reads policy from spec.runPolicy (1.3 and later); "arena" (kubeflow/pytorch-operator, the chart of
kubeflow/arena) reads it at spec level and its CRD prunes everything else. Each field is written where the member reads
it; what a dialect cannot carry is a warning if the job still means the same without it, and a refusal if not.
"""

import msgspec

from dispatcher.jobs import Job
from kube.objects.meta import Json
from kube.objects.reservation import GangReservation

TRAINING_OPERATOR = "training-operator"
ARENA = "arena"


class Identity(msgspec.Struct, frozen=True):
    """PROTOCOL "Words": on every object muster makes in a member."""

    hub_id: str
    job_id: str
    epoch: int


class MemberCopy(msgspec.Struct, frozen=True, kw_only=True):
    document: Json
    """The job, ready to POST."""
    warnings: tuple[str, ...] = ()


class CannotCarry(ValueError):
    """This dialect cannot run this job; str() is the reason for the user."""


def detect_dialect(schema: Json) -> str:
    """Dialect of a member from the openAPIV3Schema of its PyTorchJob CRD (served version): spec.runPolicy there or
    not. "" if it is no PyTorchJob schema at all."""
    raise NotImplementedError


def why_not(job: Job, dialect: str) -> str:
    """"" if the dialect can carry the job, else the reason: what placement says of such a member."""
    raise NotImplementedError


def member_copy(job: Job, dialect: str, scheduler_name: str, identity: Identity) -> MemberCopy:
    """Raises CannotCarry. `scheduler_name` is what the member's capacity report says gangs should name."""
    raise NotImplementedError


def member_pod_group(job: Job, identity: Identity) -> Json:
    """PodGroup named as the job."""
    raise NotImplementedError


def member_reservation(
    job: Job, dialect: str, scheduler_name: str, identity: Identity, *, claim: bool = False, ttl_seconds: int = 60,
    landing_deadline_seconds: int = 600,
) -> GangReservation:
    """Pending reservation with each role's template exactly as `member_copy` writes it. Raises CannotCarry."""
    raise NotImplementedError


def member_namespace(name: str, hub_id: str) -> Json:
    """Namespace to create in a member. It carries the hub's id (it is ours) but no job's: many jobs share it."""
    raise NotImplementedError


def stamp(document: Json, identity: Identity) -> Json:
    """A copy with the identity annotations and the managed label. Not in place."""
    raise NotImplementedError


def identity_of(document: Json) -> Identity | None:
    """Identity that an object in a member carries; None if it is not ours or its annotations are incomplete."""
    raise NotImplementedError
