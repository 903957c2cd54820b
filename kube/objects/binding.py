"""ResourceBinding, muster.dev/v1alpha1: the durable record of one job, on the hub, in the job's namespace.

`spec` holds decisions (a backup tool drops status; a finished job must not run again after a restore),
`status` holds observations. Both are written by the dispatcher alone. No ownerReference: it holds the
job's name until everything of it is gone (PROTOCOL "Words").
"""

from typing import Literal

import msgspec

from kube.objects.meta import Condition, ObjectMeta

AttemptState = Literal["Reserving", "Scheduled", "Landed", "Evicting", "Finished"]
"""States of an attempt, PROTOCOL "States". A binding without an attempt is queued (or held)."""


class JobRef(msgspec.Struct, rename="camel", kw_only=True):
    api_version: str
    kind: str
    name: str
    uid: str


class Component(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A role of the job: "master" or "worker"."""

    name: str
    replicas: int
    min_replicas: int
    request: dict[str, str] = {}
    """Effective request of one pod, canonical quantities."""


class Attempt(
    msgspec.Struct,
    rename={
        "cluster": "cluster",
        "cluster_uid": "clusterUID",
        "epoch": "epoch",
        "state": "state",
        "reason": "reason",
        "message": "message",
        "started_at": "startedAt",
        "then": "then",
        "claim": "claim",
    },
    omit_defaults=True,
    kw_only=True,
):
    cluster: str
    cluster_uid: str = ""
    """uid of the member's kube-system namespace when the attempt was recorded (rule 17)."""
    epoch: int
    state: AttemptState
    reason: str = ""
    message: str = ""
    started_at: str = ""
    then: Literal["", "Queue", "Delete", "Hold"] = ""
    """With Evicting: what follows once nothing of the attempt is left."""
    claim: bool = False
    """With Reserving: it does not fit now, and asks the member to keep nodes free until it does."""


class Result(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """How the job ended. Recorded before anything is released; final."""

    state: Literal["Succeeded", "Failed"]
    cluster: str
    epoch: int
    message: str = ""
    completion_time: str = ""
    released: bool = False
    """Rule 3: no pod of it may still run; quota and room have been given back."""


class Charge(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """What this binding is charged in the quota tree, exactly as it will be released."""

    path: list[str]
    """Node names from root to leaf."""
    amounts: dict[str, str] = {}
    non_preemptible: bool = False
    """Charged against min as well; recorded, because the job's label may be edited while it runs."""


class BindingSpec(
    msgspec.Struct,
    rename={
        "hub_id": "hubID",
        "job_id": "id",
        "job": "job",
        "policy": "policy",
        "queued": "queued",
        "quota": "quota",
        "components": "components",
        "min_member": "minMember",
        "priority": "priority",
        "queued_at": "queuedAt",
        "last_epoch": "lastEpoch",
        "attempt": "attempt",
        "charge": "charge",
        "result": "result",
        "deleting": "deleting",
        "excluded": "excluded",
    },
    omit_defaults=True,
    kw_only=True,
):
    hub_id: str
    job_id: str
    """Minted once; DNS-1035, at most 40 characters."""
    job: JobRef
    policy: str = ""
    """Name of the PropagationPolicy in the same namespace."""
    queued: bool = False
    """The policy says suspension.scheduling: the job goes through the quota tree."""
    quota: str = ""
    """Full path of the quota leaf, "root/child-2"."""
    components: list[Component] = []
    min_member: int = 0
    priority: int = 0
    queued_at: str = ""
    """Age, kept over requeues (RFC 3339 with microseconds)."""
    last_epoch: int = 0
    attempt: Attempt | None = None
    charge: Charge | None = None
    result: Result | None = None
    deleting: bool = False
    """The hub's job was deleted: decided, so that no later state brings it back."""
    excluded: list[str] = []
    """Members that refused or failed this job since it was last queued; cleared by back-off."""


class ClusterReason(msgspec.Struct, kw_only=True):
    cluster: str
    message: str


class BindingStatus(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    phase: str = ""
    """Held, Queued, Reserving, Scheduled, Running, Evicting, Succeeded, Failed, Invalid, Deleting."""
    conditions: list[Condition] = []
    """Scheduled (with why not), Running (every required pod active), Valid."""
    reasons: list[ClusterReason] = []
    observed_generation: int = 0


class ResourceBinding(msgspec.Struct, rename="camel", kw_only=True):
    api_version: str = "muster.dev/v1alpha1"
    kind: str = "ResourceBinding"
    metadata: ObjectMeta
    spec: BindingSpec
    status: BindingStatus = msgspec.field(default_factory=BindingStatus)


def binding_name(job: str) -> str:
    """`<job>-pytorchjob`: kind in the derived name, so two kinds never collide (karmada#2099)."""
    return f"{job}-pytorchjob"
