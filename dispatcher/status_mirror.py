"""A member job's status -> the hub job's status, and what it proves.

Unknown is never finished (K11): an absent, empty or malformed status says nothing, and an end is believed only from a
condition Succeeded or Failed whose status is "True".
"""

from collections import Counter
from typing import Literal

import msgspec

from dispatcher.documents import deep_copy, mapping, maps, text, whole
from dispatcher.jobs import Job
from kube.objects.binding import BindingSpec
from kube.objects.meta import Condition, Json

State = Literal["", "Created", "Running", "Restarting", "Suspended", "Succeeded", "Failed"]

_FINAL = ("Failed", "Succeeded")
"""After Failed nothing changes any more, so it is looked for first."""
_PASSING: tuple[State, ...] = ("Suspended", "Restarting", "Running", "Created")
"""In the order in which one overrules the next while nothing is final."""


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What a member's job says of itself."""

    state: State
    """"" if it says nothing yet."""
    message: str = ""
    reason: str = ""
    completion_time: str = ""
    active: dict[str, int] = {}
    """role key -> pods active (Running and not terminating)."""
    succeeded: dict[str, int] = {}
    failed: dict[str, int] = {}

    @property
    def finished(self) -> bool:
        return self.state in _FINAL


def observe(member_job: Json) -> Observed:
    """Never raises for odd input."""
    status = mapping(member_job.get("status"))
    held = _by_type(status)
    state: State = ""
    for candidate in (*_FINAL, *_PASSING):
        if text(held.get(candidate, {}).get("status")) == "True":
            state = candidate  # type: ignore[assignment]  # of the literals above
            break
    telling = held.get(state, {})
    completion = text(status.get("completionTime"))
    if state in _FINAL and not completion:
        completion = text(telling.get("lastTransitionTime"))
    return Observed(
        state=state,
        message=text(telling.get("message")),
        reason=text(telling.get("reason")),
        completion_time=completion,
        active=_counts(status, "active"),
        succeeded=_counts(status, "succeeded"),
        failed=_counts(status, "failed"),
    )


def _by_type(status: Json) -> dict[str, Json]:
    """The last condition of each type."""
    return {text(condition.get("type")): condition for condition in maps(status.get("conditions"))}


def _counts(status: Json, field: str) -> dict[str, int]:
    counts = {}
    for role, replica_status in mapping(status.get("replicaStatuses")).items():
        count = whole(mapping(replica_status).get(field))
        if count:
            counts[role] = count
    return counts


def initial_status(job: Job, now: str) -> Json:
    """Status of a job that muster has taken: condition Created (what the seed's `kubectl get pytorchjob` shows)."""
    kind = job.kind.kind
    return {
        "conditions": [_condition("Created", f"{kind}Created", f"{kind} {job.name} is created.", now)],
        "replicaStatuses": {role.key: {} for role in job.roles},
    }


def _condition(type_: str, reason: str, message: str, now: str, status: str = "True") -> Json:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastUpdateTime": now,
        "lastTransitionTime": now,
    }


def hub_status(member_status: Json | None, job: Job | None, now: str) -> Json:
    """The hub job's status: the member's conditions re-ordered so that the last element is the true state (kubectl's
    STATE column prints `.status.conditions[-1:].type`, whatever that element's status), replicaStatuses, startTime,
    completionTime. Conditions and replicaStatuses are always there: older schemas require them. Without a member's
    status it is the initial one; `now` (RFC 3339) is only used for that. `job` None: as written now it is invalid, and
    the member's status has conditions."""
    status = deep_copy(mapping(member_status))
    conditions = maps(status.get("conditions"))
    if not conditions and job is not None:
        initial = initial_status(job, now)
        return {**initial, "replicaStatuses": mapping(status.get("replicaStatuses")) or initial["replicaStatuses"]}
    mirrored: Json = {
        "conditions": state_last(conditions),
        "replicaStatuses": {
            **{role.key: {} for role in (job.roles if job is not None else ())},
            **mapping(status.get("replicaStatuses")),
        },
    }
    for name in ("startTime", "completionTime", "lastReconcileTime"):
        if text(status.get(name)):
            mirrored[name] = status[name]
    return mirrored


def state_last(conditions: list[Json]) -> list[Json]:
    """The conditions in their order, but the one that is the job's state moved to the end."""
    observed = observe({"status": {"conditions": conditions}})
    if not observed.state:
        return conditions
    last = max(i for i, condition in enumerate(conditions) if text(condition.get("type")) == observed.state)
    return [*conditions[:last], *conditions[last + 1 :], conditions[last]]


def with_condition(status: Json, condition: Condition) -> Json:
    """With a condition of the hub's own (Queuing "Job Enqueued"): replaces one of its type, and stands before the last
    element, which stays the job's state. Without any other condition it is the only one."""
    document = {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastUpdateTime": condition.last_transition_time,
        "lastTransitionTime": condition.last_transition_time,
    }
    before = next((each for each in maps(status.get("conditions")) if each.get("type") == condition.type), None)
    if before is not None and before.get("status") == condition.status:
        document["lastTransitionTime"] = before.get("lastTransitionTime", condition.last_transition_time)
        if (before.get("reason"), before.get("message")) == (condition.reason, condition.message):
            document["lastUpdateTime"] = before.get("lastUpdateTime", condition.last_transition_time)
    others = [each for each in maps(status.get("conditions")) if each.get("type") != condition.type]
    return {**status, "conditions": [*others[:-1], document, *others[-1:]]}


def running_condition(
    observed: Observed, placed: BindingSpec, generation: int, previous: Condition | None, now: str
) -> Condition:
    """The binding's Running condition: True only when every required pod of each role is active or has succeeded.

    The operator's own Running needs only the Master active, so it proves no gang (training-operator 1.9
    UpdateJobStatus). `placed`: what was dispatched, whatever the hub's job says since. `generation`: the binding's."""
    counts: Counter[str] = Counter()
    for there in (observed.active, observed.succeeded):
        counts.update({role.lower(): number for role, number in there.items()})
    roles = placed.components
    required = (
        all(counts[role.name] >= role.min_replicas for role in roles)
        and sum(counts[role.name] for role in roles) >= placed.min_member
    )
    told = ", ".join(f"{role.name} {counts[role.name]} of {role.replicas}" for role in roles)
    if observed.finished:
        status, reason, message = "False", f"Job{observed.state}", observed.message
    elif not observed.state:
        status, reason, message = "Unknown", "NoStatusYet", "the member's job has no status yet"
    elif required:
        status, reason, message = "True", "RequiredPodsActive", f"active: {told}"
    else:
        status, reason, message = "False", "RequiredPodsNotActive", f"active: {told}"
    changed = previous is None or previous.status != status
    return Condition(
        type="Running",
        status=status,
        reason=reason,
        message=message,
        last_transition_time=now if changed or previous is None else previous.last_transition_time,
        observed_generation=generation,
    )
