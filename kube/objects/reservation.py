"""GangReservation, muster.dev/v1alpha1: room in one member asked for by the hub, for one attempt of one job.

Namespace muster-system, named `reservation_name(id, epoch)`. The dispatcher writes spec, the extender
writes status. `spec.state` only moves Pending -> Dispatched; everything else of spec is fixed at creation
but `renewals` and `claim`.
"""

from typing import Literal

import msgspec

from kube.objects.meta import Json, ObjectMeta

Wished = Literal["Pending", "Dispatched"]
"""Pending: hold room once Reserved, for ttlSeconds from first sight or last renewal; admits no pod.
Dispatched: the job is being posted or is there; its pods are admitted (PROTOCOL rule 11)."""

State = Literal["", "Reserved", "Refused", "Landed"]
"""Status. "": not judged yet. Refused is final. Landed: every role's minimum and minMember are bound."""


class ReservationRole(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    name: str
    """"master" or "worker": the value of the label muster.dev/role on this role's pods."""
    count: int
    min_count: int
    """Smallest number that must be bound for the gang to land (Master: all)."""
    template: Json
    """Pod template {metadata, spec} in the member's dialect, as the training operator will get it."""


class ReservationSpec(
    msgspec.Struct,
    rename={
        "hub_id": "hubID",
        "job_id": "id",
        "epoch": "epoch",
        "job_namespace": "jobNamespace",
        "job_name": "jobName",
        "state": "state",
        "roles": "roles",
        "min_member": "minMember",
        "ttl_seconds": "ttlSeconds",
        "landing_deadline_seconds": "landingDeadlineSeconds",
        "renewals": "renewals",
        "claim": "claim",
        "prefer_topology_key": "preferTopologyKey",
    },
    omit_defaults=True,
    kw_only=True,
):
    hub_id: str
    job_id: str
    epoch: int
    job_namespace: str
    job_name: str
    """Namespace and name of the job, its PodGroup and its pods in the member."""
    state: Wished = "Pending"
    roles: list[ReservationRole]
    min_member: int
    ttl_seconds: int = 60
    landing_deadline_seconds: int = 600
    renewals: int = 0
    """Raised by the hub to restart the TTL; clocks of hub and member are never compared."""
    claim: bool = False
    """If it does not fit: pick the node set that frees soonest and admit nothing of lower or equal priority there."""
    prefer_topology_key: str = ""


class Placement(msgspec.Struct):
    node: str
    role: str
    count: int


class ReservationStatus(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    state: State = ""
    reason: str = ""
    """CamelCase: InsufficientResources, TTLExpired, LandingDeadlineExceeded, PromiseBroken, Evicted."""
    message: str = ""
    """For people, in numbers: "largest fit 7 of 9 pods: 2 short of nvidia.com/gpu"."""
    observed_generation: int = 0
    placements: list[Placement] = []
    pods_ended: bool = False
    """All pods of this gang that ever bound have ended (PROTOCOL rule 9)."""


class GangReservation(msgspec.Struct, rename="camel", kw_only=True):
    api_version: str = "muster.dev/v1alpha1"
    kind: str = "GangReservation"
    metadata: ObjectMeta
    spec: ReservationSpec
    status: ReservationStatus = msgspec.field(default_factory=ReservationStatus)


def reservation_name(job_id: str, epoch: int) -> str:
    """Object name of an attempt's reservation; one per (id, epoch)."""
    return f"{job_id}-{epoch}"
