"""The status of the hub's job: the copy's where there is one, else what muster itself knows. Pure.

`kubectl get pytorchjob` prints the type of the last condition as STATE, so that one has to be the truth.
"""

from dispatcher.documents import at, deep_copy, mapping, maps, text
from dispatcher.jobs import Job
from dispatcher.kinds import PYTORCHJOB
from dispatcher.status_mirror import hub_status, initial_status, with_condition
from kube.objects.binding import BindingSpec
from kube.objects.meta import Condition, Json

_TIMES = ("lastUpdateTime", "lastTransitionTime", "lastHeartbeatTime")


def wanted_status(
    existing: Json | None, job: Job | None, problem: str, spec: BindingSpec, copy_status: Json | None, now: str
) -> Json | None:
    """None: what is there is right (but for times that say nothing new). `job` None: invalid, `problem` says why.
    `copy_status`: of the copy of the present attempt; None: not seen. `now`: RFC 3339."""
    before = mapping(existing)
    if job is None and _placed(spec):
        # Edited into something invalid after it was placed: what runs, or ran, is what was valid.
        if not copy_status or not maps(copy_status.get("conditions")):
            return None
        wanted = hub_status(copy_status, None, now)
    elif job is None:
        wanted = _invalid(problem, now)
    else:
        wanted = _base(before, job, spec, copy_status, now)
    if spec.queued and (job is not None or _placed(spec)):
        wanted = with_condition(wanted, _queuing(spec, now))
    if _timeless(wanted) == _timeless(before):
        return None
    return _keep_times(wanted, before)


def _placed(spec: BindingSpec) -> bool:
    return spec.result is not None or (spec.attempt is not None and spec.attempt.state != "Reserving")


def _base(before: Json, job: Job, spec: BindingSpec, copy_status: Json | None, now: str) -> Json:
    if copy_status and maps(copy_status.get("conditions")):
        return hub_status(copy_status, job, now)
    if spec.result is not None:
        return before if state(before) == spec.result.state else _ended(job, spec, now)
    if spec.attempt is not None and spec.attempt.state == "Landed" and copy_status is None and state(before):
        return before  # its member does not tell now: the last that was seen stays
    return initial_status(job, now)


def state(status: Json) -> str:
    """What kubectl prints as STATE."""
    conditions = maps(status.get("conditions"))
    return text(conditions[-1].get("type")) if conditions else ""


def _ended(job: Job, spec: BindingSpec, now: str) -> Json:
    assert spec.result is not None
    initial = initial_status(job, now)
    ended = {
        "type": spec.result.state,
        "status": "True",
        "reason": f"{job.kind.kind}{spec.result.state}",
        "message": spec.result.message,
        "lastUpdateTime": now,
        "lastTransitionTime": now,
    }
    status = {**initial, "conditions": [*initial["conditions"], ended]}
    if spec.result.completion_time:
        status["completionTime"] = _seconds(spec.result.completion_time)
    return status


def _seconds(timestamp: str) -> str:
    """metav1.Time has no fractions."""
    head, dot, _ = timestamp.partition(".")
    return f"{head}Z" if dot else timestamp


def _invalid(problem: str, now: str) -> Json:
    return {
        "conditions": [
            {
                "type": "Invalid",
                "status": "True",
                "reason": f"{PYTORCHJOB.kind}Invalid",
                "message": problem,
                "lastUpdateTime": now,
                "lastTransitionTime": now,
            }
        ],
        "replicaStatuses": {},
    }


def _queuing(spec: BindingSpec, now: str) -> Condition:
    """After kube-queue: Queuing True "Job Enqueued", False "Job Dequeued"."""
    admitted = spec.attempt is not None or spec.result is not None
    return Condition(
        type="Queuing",
        status="False" if admitted else "True",
        reason="JobDequeued" if admitted else "JobEnqueued",
        message="Job Dequeued" if admitted else "Job Enqueued",
        last_transition_time=now,
    )


def _timeless(status: Json) -> Json:
    bare = {k: v for k, v in status.items() if k != "lastReconcileTime"}
    bare["conditions"] = [
        {k: v for k, v in condition.items() if k not in _TIMES} for condition in maps(status.get("conditions"))
    ]
    return bare


def _keep_times(wanted: Json, before: Json) -> Json:
    """Conditions that stay as they are keep their times."""
    kept = deep_copy(wanted)
    known = {text(c.get("type")): c for c in maps(before.get("conditions"))}
    for condition in maps(at(kept, ("conditions",))):
        old = known.get(text(condition.get("type")))
        if old is not None and all(old.get(f) == condition.get(f) for f in ("status", "reason", "message")):
            condition.update({f: old[f] for f in _TIMES if f in old})
    return kept
