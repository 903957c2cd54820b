"""What the dispatcher knows about one job when it decides the next step: small frozen views, nothing of the wire.

Shells fill them from caches or from live reads; `dispatcher.attempts` reads them. A view says what was seen, never
what should be done. Everything about members is of *one* job: objects that carry its id (or, for the copy, its name).
"""

from typing import Literal

import msgspec

from kube.objects.binding import Component


class End(msgspec.Struct, frozen=True, kw_only=True):
    """How a copy ended, from its Succeeded or Failed condition."""

    state: Literal["Succeeded", "Failed"]
    message: str = ""
    completion_time: str = ""
    """RFC 3339, as the training operator wrote it."""


class HubJobView(msgspec.Struct, frozen=True, kw_only=True):
    """The user's job on the hub."""

    uid: str
    job_id: str = ""
    """Annotation muster.dev/id; "" where it was never stamped."""
    finalizer: bool = False
    """muster.dev/cleanup is among its finalizers."""
    deleting: bool = False
    suspended: bool = False
    """runPolicy.suspend: the user's own hold."""
    policy: str = ""
    """Name of the PropagationPolicy that selects it; "" when none does."""
    problem: str = ""
    """Why it cannot be scheduled as written; "" when it is valid."""
    hold: str = ""
    """Why it must not be tried now although it is valid: its namespace has no quota, its policy cannot be used."""
    ttl_seconds: int | None = None
    """ttlSecondsAfterFinished, kept by the hub (rule 9)."""


class ReservationView(msgspec.Struct, frozen=True, kw_only=True):
    uid: str = ""
    resource_version: str
    epoch: int
    dispatched: bool = False
    """spec.state is Dispatched."""
    state: Literal["", "Reserved", "Refused", "Landed"] = ""
    reason: str = ""
    message: str = ""
    pods_ended: bool = False
    claim: bool = False
    renewals: int = 0
    deleting: bool = False


class CopyView(msgspec.Struct, frozen=True, kw_only=True):
    """The job of this name in a member, ours or not."""

    uid: str
    resource_version: str
    job_id: str = ""
    """"" when it is not ours: it does not carry our hub id."""
    epoch: int = 0
    end: End | None = None
    deleting: bool = False


class PodGroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A PodGroup that carries this job's id."""

    uid: str
    resource_version: str
    deleting: bool = False


class MemberView(msgspec.Struct, frozen=True, kw_only=True):
    """One member as far as one job is concerned.

    connection: Reachable (answers, and its caches are synced); Unreachable (silent, or removed from the hub);
    Replaced (another kube-system uid than was accepted, rule 17); Fenced (the admin promised that its nodes are off).
    Only Reachable proves anything (rule 15).
    """

    cluster: str
    connection: Literal["Reachable", "Unreachable", "Replaced", "Fenced"] = "Reachable"
    why: str = ""
    """For people, when not Reachable: "no answer for 42s"."""
    cluster_uid: str = ""
    live: bool = False
    """True: reservation, copy, PodGroup and pods were read just now, in this order. False: from watch caches, where
    presence is true or recent and absence proves nothing (rule 6)."""
    reservation: ReservationView | None = None
    """Of the attempt's epoch."""
    copy: CopyView | None = None
    pod_group: PodGroupView | None = None
    pods: int = 0
    """Pods of this id that exist."""
    pods_running: int = 0
    """Of them, those that may still run: neither Succeeded nor Failed."""


class Stray(msgspec.Struct, frozen=True, kw_only=True):
    """Objects of this id in a reachable member that belong to no current attempt (rule 8)."""

    cluster: str
    reservations: tuple[ReservationView, ...] = ()
    copy: CopyView | None = None
    pods: int = 0
    pods_bound: int = 0
    """Of them, those that were given a node: they run, or did."""


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """What the job and its policy ask for now. Fields are those of `BindingSpec` that follow edits while it waits."""

    policy: str
    queued: bool
    quota: str
    components: list[Component]
    min_member: int
    priority: int


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `attempts.next_action` looks at besides the binding's spec."""

    job: HubJobView | None
    job_live: bool = False
    """job was read just now: None then proves that it is gone."""
    binding_live: bool = False
    """The binding's absence was read just now."""
    member: MemberView | None = None
    """The attempt's member; None only without an attempt."""
    strays: tuple[Stray, ...] = ()
    intent: Intent | None = None
    """None: the job is missing, invalid or without a policy."""
    checks_pending: str = ""
    """Admission checks that others have not answered yet; "": none."""
    checks_failed: str = ""
    """Admission checks that others answered with Retry or Rejected; "": none."""
    waited: float = 0.0
    """Seconds this attempt has been in its state, on the hub's monotonic clock, as far as this process knows."""
