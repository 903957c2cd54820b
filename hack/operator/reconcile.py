"""One pass over one job: what to create and delete, and what its status should say. Pure; time is passed in.

training-operator pkg/controller.v1/common/job.go ReconcileJobs and pytorch/pytorchjob_controller.go UpdateJobStatus;
where the legacy operator differs, it says so here.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from hack.operator.job import (
    CONTAINER,
    MASTER,
    OUR_MANAGER,
    WORKER,
    Dialect,
    JobInvalid,
    JobObject,
    Role,
    TrainingJob,
    parse_job,
)
from hack.operator.pods import Gang, pod, service
from hack.operator.status import (
    CREATED,
    FAILED,
    RESTARTING,
    RUNNING,
    SUCCEEDED,
    SUSPENDED,
    ReplicaPod,
    counts,
    instant,
    is_finished,
    is_true,
    set_condition,
    timestamp,
)
from kube.objects.meta import Json
from kube.objects.quantity import amount_of_milli, format_amount, milli_units


class Plan(msgspec.Struct, kw_only=True):
    """What to do, in this order: PodGroup, deletions, then pods and Services type by type, then the status."""

    pod_group: Json | None = None
    """As it should be."""
    delete_pod_group: bool = False
    delete_pods: list[ReplicaPod] = []
    delete_services: list[str] = []
    create_pods: list[Json] = []
    create_services: list[Json] = []
    status: Json | None = None
    """Whole, where it is to be written."""
    delete_job: bool = False
    """Its TTL is over."""
    again_after: float | None = None
    """Seconds until a deadline or TTL is due."""
    complaint: str = ""
    """Why the job is not looked at; for the log."""


def reconcile(
    document: JobObject,
    pods: Iterable[ReplicaPod],
    services: Iterable[str],
    now: datetime,
    *,
    dialect: Dialect,
    role_order: Sequence[str] = (MASTER, WORKER),
    gang: Gang | None = None,
) -> Plan:
    """pods, services: those owned by the job (names of the latter).

    role_order: replica types are worked on in this order (Go's map order in the operators: a new one each time).
    """
    if document.metadata.deletion_timestamp is not None:
        return Plan()
    before = document.status or {}
    status = copy.deepcopy(before)
    try:
        job = parse_job(document, dialect)
    except JobInvalid as error:
        set_condition(status, FAILED, True, "FailedValidation", str(error), now)
        return Plan(status=_changed(before, _complete(status)), complaint=str(error))
    if job.managed_by not in ("", OUR_MANAGER):
        return Plan(complaint=f"managed by {job.managed_by}")
    set_condition(status, CREATED, True, "Created", f"PyTorchJob {job.name} is created.", now)
    own = sorted(pods, key=lambda each: each.metadata.name)
    there = set(services)
    if is_finished(status):
        plan = _clean_up(job, status, own, there, gang, now)
        if is_true(status, SUCCEEDED):
            for entry in (status.get("replicaStatuses") or {}).values():
                entry["succeeded"] = entry.get("succeeded", 0) + entry.pop("active", 0)
                if not entry["succeeded"]:
                    del entry["succeeded"]
    elif job.suspend:
        plan = _suspend(job, status, own, there, gang, now)
    else:
        if is_true(status, SUSPENDED):
            set_condition(status, SUSPENDED, False, "Resumed", f"PyTorchJob {job.name} is resumed.", now)
            status["startTime"] = timestamp(now)
        failure = _limit_reached(job, status, own, now)
        if failure:
            status.setdefault("completionTime", timestamp(now))
            plan = Plan(
                delete_pods=own,
                delete_services=_services_of(own, there),
                delete_pod_group=gang is not None and not job.legacy,
            )
            set_condition(status, FAILED, True, "Failed", failure, now)
        else:
            plan = _run(job, status, own, there, gang, now, role_order)
    plan.status = _changed(before, _complete(status))
    return plan


def _complete(status: Json) -> Json:
    """Fields the legacy CRD requires."""
    status.setdefault("conditions", [])
    status.setdefault("replicaStatuses", {})
    return status


def _changed(before: Json, after: Json) -> Json | None:
    return None if before == after else after


def _run(
    job: TrainingJob,
    status: Json,
    pods: list[ReplicaPod],
    services: set[str],
    gang: Gang | None,
    now: datetime,
    role_order: Sequence[str],
) -> Plan:
    plan = Plan()
    if gang is not None and not job.legacy:
        plan.pod_group = _pod_group(job)
    ordered = [job.roles[type_] for type_ in role_order if type_ in job.roles]
    for role in ordered:
        mine = [each for each in pods if each.role == role.label]
        by_index = {each.index: each for each in mine}
        for index in range(role.replicas):
            if index not in by_index:
                plan.create_pods.append(pod(job, role, index, gang))
        for each in mine:
            if not 0 <= each.index < role.replicas:
                plan.delete_pods.append(each)
            elif each.phase == FAILED:
                _pod_failed(job, role, each, status, plan, now)
        status.setdefault("replicaStatuses", {})[role.type] = counts(job, role, mine)
        for index in range(role.replicas):
            wanted = service(job, role, index)
            if wanted is not None and wanted["metadata"]["name"] not in services:
                plan.create_services.append(wanted)
    _update_status(job, status, ordered, pods, now)
    if job.active_deadline_seconds is not None:
        due = instant(status["startTime"]) + timedelta(seconds=job.active_deadline_seconds)
        plan.again_after = max(0.0, (due - now).total_seconds())
    return plan


def _pod_failed(job: TrainingJob, role: Role, failed: ReplicaPod, status: Json, plan: Plan, now: datetime) -> None:
    """The restart table. Legacy: only a retryable exit code restarts."""
    retryable = role.restart_policy == "ExitCode" and failed.exit_code(CONTAINER) >= 128
    if retryable or (role.restart_policy in ("OnFailure", "Always") and not job.legacy):
        plan.delete_pods.append(failed)
        message = f"job {job.name} is restarting because {role.type} replica(s) failed."
        set_condition(status, RESTARTING, True, "Restarting", message, now)
    elif role.restart_policy == "ExitCode" and not job.legacy:
        message = f'job "{job.name}" is failing because "{role.type}" replica(s) failed.'
        set_condition(status, FAILED, True, "Failed", message, now)


def _update_status(
    job: TrainingJob, status: Json, roles: Iterable[Role], pods: list[ReplicaPod], now: datetime
) -> None:
    status.setdefault("startTime", timestamp(now))
    for role in roles:
        entry = status["replicaStatuses"][role.type]
        active, succeeded, failed = (entry.get(name, 0) for name in ("active", "succeeded", "failed"))
        if MASTER in job.roles:
            decides, where = role.type == MASTER, job.name
        else:
            decides, where = role.type == WORKER, f"{job.namespace}/{job.name}"
        done = succeeded == role.replicas or (MASTER not in job.roles and job.elastic is not None and succeeded > 0)
        if decides and active and (MASTER in job.roles or not done):
            set_condition(status, RUNNING, True, "Running", f"PyTorchJob {where} is running.", now)
        if decides and done:
            words = "is successfully completed" if MASTER in job.roles else "successfully completed"
            status.setdefault("completionTime", timestamp(now))
            set_condition(status, SUCCEEDED, True, "Succeeded", f"PyTorchJob {where} {words}.", now)
            if MASTER in job.roles:
                return
        if failed and (job.legacy or role.replicas > succeeded + active):
            if _restarts(job, role, pods):
                message = f"PyTorchJob {job.name} is restarting because {failed} {role.type} replica(s) failed."
                set_condition(status, RESTARTING, True, "Restarting", message, now)
            else:
                message = f"PyTorchJob {job.name} is failed because {failed} {role.type} replica(s) failed."
                status.setdefault("completionTime", timestamp(now))
                set_condition(status, FAILED, True, "Failed", message, now)


def _restarts(job: TrainingJob, role: Role, pods: list[ReplicaPod]) -> bool:
    if not job.legacy:
        return role.restart_policy != "Never"
    return role.restart_policy == "ExitCode" and any(
        each.role == role.label and each.phase == FAILED and each.exit_code(CONTAINER) >= 128 for each in pods
    )


def _limit_reached(job: TrainingJob, status: Json, pods: list[ReplicaPod], now: datetime) -> str:
    """The failure message of a passed backoffLimit or activeDeadlineSeconds; "" while within them."""
    if job.backoff_limit is not None:
        restarts = sum(
            each.restarts
            for each in pods
            if each.phase == RUNNING
            for role in job.roles.values()
            if role.label == each.role and role.restart_policy in ("OnFailure", "Always", "ExitCode")
        )
        failed = sum(1 for each in pods if each.phase == FAILED)
        known = sum(entry.get("failed", 0) for entry in (status.get("replicaStatuses") or {}).values())
        active = sum(1 for each in pods if each.phase not in (SUCCEEDED, FAILED) and not each.terminating)
        anew = failed > known and active != job.total and job.backoff_limit < 1
        if anew or (restarts >= job.backoff_limit if job.backoff_limit else restarts > 0):
            return f"Job {job.name} has failed because it has reached the specified backoff limit"
    if job.active_deadline_seconds is not None and "startTime" in status:
        active_for = (now - instant(status["startTime"])).total_seconds()
        if active_for >= job.active_deadline_seconds:
            return f"Job {job.name} has failed because it was active longer than specified deadline"
    return ""


def _clean_up(
    job: TrainingJob, status: Json, pods: list[ReplicaPod], services: set[str], gang: Gang | None, now: datetime
) -> Plan:
    """The end: cleanPodPolicy, the PodGroup, the TTL. Pending pods would run once there is room: like running ones."""
    doomed: list[ReplicaPod] = []
    if job.clean_pod_policy == "All":
        doomed = pods
    elif job.clean_pod_policy == "Running":
        doomed = [each for each in pods if each.phase in ("Running", "Pending")]
    plan = Plan(
        delete_pods=doomed,
        delete_services=_services_of(doomed, services),
        delete_pod_group=gang is not None and not job.legacy,
    )
    if job.ttl_seconds is not None:
        ended = status.setdefault("completionTime", timestamp(now))
        left = (instant(ended) + timedelta(seconds=job.ttl_seconds) - now).total_seconds()
        plan.delete_job, plan.again_after = left <= 0, max(0.0, left)
    return plan


def _suspend(
    job: TrainingJob, status: Json, pods: list[ReplicaPod], services: set[str], gang: Gang | None, now: datetime
) -> Plan:
    """Nothing of the job stays, whatever cleanPodPolicy says."""
    for entry in (status.get("replicaStatuses") or {}).values():
        entry.pop("active", None)
    message = f"PyTorchJob {job.name} is suspended."
    if is_true(status, RUNNING):
        set_condition(status, RUNNING, False, "Suspended", message, now)
    if not is_true(status, SUSPENDED):
        set_condition(status, SUSPENDED, True, "Suspended", message, now)
    return Plan(delete_pods=pods, delete_services=_services_of(pods, services), delete_pod_group=gang is not None)


def _services_of(pods: Iterable[ReplicaPod], services: set[str]) -> list[str]:
    """A pod and its Service have the same name."""
    return [each.metadata.name for each in pods if each.metadata.name in services]


def _pod_group(job: TrainingJob) -> Json:
    policy = job.scheduling_policy
    least = policy.get("minAvailable")
    minimum = job.total if least is None else least
    spec: Json = {
        "minMember": minimum,
        # elasticPolicy.minReplicas is not looked at (trainer#1515).
        "minResources": policy.get("minResources") or _min_resources(job, minimum),
    }
    if policy.get("scheduleTimeoutSeconds") is not None:
        spec["scheduleTimeoutSeconds"] = policy["scheduleTimeoutSeconds"]
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {
            "name": job.name,
            "namespace": job.namespace,
            "annotations": job.annotations,
            "ownerReferences": [job.owner_reference],
        },
        "spec": spec,
    }


def _min_resources(job: TrainingJob, members: int) -> dict[str, str]:
    """Requests of a container or, if it has none at all, its limits: not per key, so requests{cpu} with limits{gpu}
    lose the gpu (common/util.go AddResourceList)."""
    milli: dict[str, int] = {}
    left = members
    for role in job.roles.values():
        taken = min(left, role.replicas)
        left -= taken
        for container in role.template["spec"]["containers"]:
            resources: Mapping[str, Mapping[str, str | int | float | None]] = container.get("resources") or {}
            asked = resources.get("requests") or resources.get("limits") or {}
            for name, value in asked.items():
                if value is not None:
                    milli[name] = milli.get(name, 0) + taken * milli_units(value)
    return {name: format_amount(name, amount_of_milli(name, units)) for name, units in sorted(milli.items())}
