"""The hub's job -> its copy in a member's dialect, with the PodGroup and the GangReservation that go with it.

"training-operator" reads policy from spec.runPolicy (1.3 and later); "arena" (kubeflow/pytorch-operator, as the chart
of kubeflow/arena installs it) reads it at spec level and its CRD prunes everything else. Each field is written where
the member reads it. What a dialect cannot carry is a warning if the job means the same without it, else a refusal.
"""

from typing import Any

import msgspec

from dispatcher.documents import at, digits, mapping, maps, portable, whole
from dispatcher.jobs import SUSPEND_ANNOTATION, Job, Role
from dispatcher.member_objects import Identity, stamp
from kube.objects.meta import Json, ObjectMeta
from kube.objects.names import (
    ACK_GANG_MIN_AVAILABLE,
    ACK_GANG_NAME,
    DEFAULT_SCHEDULER,
    EPOCH,
    HUB_ID,
    JOB_ID,
    MANAGED,
    MUSTER_NAMESPACE,
    POD_GROUP,
    ROLE,
)
from kube.objects.reservation import GangReservation, ReservationRole, ReservationSpec, reservation_name

TRAINING_OPERATOR = "training-operator"
ARENA = "arena"

_HUB_ONLY = ("suspend", "managedBy", "ttlSecondsAfterFinished")
"""Of the run policy: the hub expresses holds and owns the TTL (kueue#14779), and clears managedBy on the copy."""
_ARENA_SPEC = ("activeDeadlineSeconds", "backoffLimit", "cleanPodPolicy")
_POLICY_FIELDS = (*_ARENA_SPEC, "ttlSecondsAfterFinished")


class MemberCopy(msgspec.Struct, frozen=True, kw_only=True):
    document: Json
    """The job, ready to POST."""
    warnings: tuple[str, ...] = ()


class CannotCarry(ValueError):
    """The dialect cannot run the job; str() is the reason for the user."""


def detect_dialect(schema: Json) -> str:
    """Dialect of a member from the openAPIV3Schema of its PyTorchJob CRD (served version): spec.runPolicy there or
    not. "" if it is no PyTorchJob schema at all."""
    properties = mapping(at(schema, ("properties", "spec", "properties")))
    if "runPolicy" in properties:
        return TRAINING_OPERATOR
    return ARENA if "pytorchReplicaSpecs" in properties else ""


def why_not(job: Job, dialect: str) -> str:
    """Empty if the dialect can carry the job, else the reason: what placement says of such a member."""
    if dialect == TRAINING_OPERATOR:
        return ""
    if dialect != ARENA:
        return f"its {job.kind.kind} dialect is not known: install the training operator there"
    lost = _lost_in_arena(job)
    return f"its {job.kind.kind} operator (legacy schema) cannot run this job: {'; '.join(lost)}" if lost else ""


def _lost_in_arena(job: Job) -> list[str]:
    there = {role.key for role in job.roles}
    # Roles of a fixed number are what the legacy operator demands: exactly one Master.
    needed = (role.key for role in job.kind.roles if role.fixed_replicas is not None)
    lost = [f"it needs a {key}" for key in needed if key not in there]
    if at(job.document, ("spec", "elasticPolicy")) is not None:
        lost.append("it drops spec.elasticPolicy")
    processes = at(job.document, ("spec", "nprocPerNode"))
    if _process_count(processes) not in (None, 1):
        # WORLD_SIZE is pods x nprocPerNode where that is a number; the legacy operator always says pods.
        lost.append(f"it drops spec.nprocPerNode {processes}")
    for role in job.roles:
        for container in maps(at(role.template, ("spec", "initContainers"))):
            if container.get("restartPolicy"):
                lost.append(f"it drops restartPolicy of init container {container.get('name')!r} of {role.key}")
    return lost


def _process_count(value: Any) -> int | None:
    """A number given as number or text; None for "auto", "gpu", "cpu" and absent."""
    return digits(value) if isinstance(value, str) else whole(value)


def member_copy(job: Job, dialect: str, scheduler_name: str, identity: Identity) -> MemberCopy:
    """Raises CannotCarry. `scheduler_name`: what the member's capacity report says gangs should name; "" means
    default-scheduler."""
    reason = why_not(job, dialect)
    if reason:
        raise CannotCarry(reason)
    warnings: list[str] = []
    document = stamp(portable(job.document), identity)
    document["metadata"]["annotations"].pop(SUSPEND_ANNOTATION, None)
    spec = mapping(document.get("spec"))
    policy = _policy(job, spec)
    roles = mapping(at(document, job.kind.roles_path))
    for role in job.roles:
        written = roles[role.key]
        written[job.kind.replicas_field] = role.replicas
        template, left_out = _template(job, role, scheduler_name, identity)
        written[job.kind.template_field] = template
        warnings += left_out
    if dialect == ARENA:
        if spec.get("nprocPerNode") not in (None, 1, "1"):
            warnings.append(f"spec.nprocPerNode {spec['nprocPerNode']} is not read by this member's operator")
        document["spec"] = {name: policy[name] for name in _ARENA_SPEC if name in policy}
    else:
        document["spec"] = {name: value for name, value in spec.items() if name not in _POLICY_FIELDS}
        document["spec"]["runPolicy"] = policy
    document["spec"][job.kind.roles_path[-1]] = roles
    return MemberCopy(document=document, warnings=tuple(dict.fromkeys(warnings)))


def _policy(job: Job, spec: Json) -> Json:
    """The run policy as the member is to read it, from both places of the hub's job."""
    policy = {
        name: value
        for name, value in mapping(spec.get(job.kind.policy_path[-1])).items()
        if name not in _HUB_ONLY and value is not None
    }
    merged = {
        "cleanPodPolicy": job.run_policy.clean_pod_policy,
        "activeDeadlineSeconds": job.run_policy.active_deadline_seconds,
        "backoffLimit": job.run_policy.backoff_limit,
    }
    return {**policy, **{name: value for name, value in merged.items() if value is not None}}


def _template(job: Job, role: Role, scheduler_name: str, identity: Identity) -> tuple[Json, list[str]]:
    """The role's pod template and what was left out of it."""
    copied = stamp(without_nulls(role.template), identity)
    labels = copied["metadata"]["labels"]
    left_out = [
        f"pod label {label} is left out: the gang is the whole job"
        for label in (ACK_GANG_NAME, ACK_GANG_MIN_AVAILABLE)
        if labels.pop(label, None) is not None
    ]
    labels[POD_GROUP] = job.name
    labels[ROLE] = role.name
    copied["spec"]["schedulerName"] = scheduler_name or DEFAULT_SCHEDULER
    return copied, left_out


def without_nulls(value: Any) -> Any:
    """A deep copy without null fields: a null limit is no limit, and must not travel on as anything else."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def member_pod_group(job: Job, identity: Identity) -> Json:
    """PodGroup named as the job."""
    spec: Json = {"minMember": job.gang_min}
    timeout = job.run_policy.scheduling.schedule_timeout_seconds
    if timeout is not None:
        spec["scheduleTimeoutSeconds"] = timeout
    document = {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": job.name, "namespace": job.namespace},
        "spec": spec,
    }
    return stamp(document, identity)


def member_reservation(
    job: Job,
    copy: MemberCopy,
    identity: Identity,
    *,
    claim: bool = False,
    ttl_seconds: int = 60,
    landing_deadline_seconds: int = 600,
) -> GangReservation:
    """Pending reservation with each role's template exactly as `copy` has it."""
    written = mapping(at(copy.document, job.kind.roles_path))
    return GangReservation(
        metadata=ObjectMeta(
            name=reservation_name(identity.job_id, identity.epoch),
            namespace=MUSTER_NAMESPACE,
            labels={MANAGED: "true"},
            annotations={HUB_ID: identity.hub_id, JOB_ID: identity.job_id, EPOCH: str(identity.epoch)},
        ),
        spec=ReservationSpec(
            hub_id=identity.hub_id,
            job_id=identity.job_id,
            epoch=identity.epoch,
            job_namespace=job.namespace,
            job_name=job.name,
            roles=[
                ReservationRole(
                    name=role.name,
                    count=role.replicas,
                    min_count=role.min_replicas,
                    template=written[role.key][job.kind.template_field],
                )
                for role in job.roles
            ],
            min_member=job.gang_min,
            ttl_seconds=ttl_seconds,
            landing_deadline_seconds=landing_deadline_seconds,
            claim=claim,
        ),
    )
