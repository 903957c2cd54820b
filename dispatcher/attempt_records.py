"""Specs that follow from a decision, as records: what changes in the binding, and nothing else does. Pure."""

from datetime import datetime

import msgspec

from dispatcher.observations import End
from dispatcher.steps import Change, Record
from kube.objects.binding import Attempt, BindingSpec, Result

LOST_END = End(
    state="Failed",
    message="its copy was deleted in the member after its pods had ended and before the hub saw how: not run again",
)

LOST_RESULT = End(
    state="Failed", message="its record says that it has ended and not how, and it has no copy any more: not run again"
)


def finished(spec: BindingSpec, attempt: Attempt, end: End, now: datetime) -> Record:
    """The result is final; quota and room stay charged until no pod may still run (rules 3 and 7)."""
    result = Result(
        state=end.state,
        cluster=attempt.cluster,
        epoch=attempt.epoch,
        message=end.message,
        completion_time=end.completion_time or timestamp(now),
    )
    ended = msgspec.structs.replace(attempt, state="Finished", reason="", message="", then="")
    return recorded("Finished", spec, attempt=ended, result=result, why=end.message)


def moved(attempt: Attempt, state: str, now: datetime) -> Attempt:
    return msgspec.structs.replace(attempt, state=state, started_at=timestamp(now), claim=False)


def evicting(spec: BindingSpec, attempt: Attempt, reason: str, message: str, *, then: str) -> Record:
    """Charged until nothing of it is left (rule 3). `then`: Queue, Hold or Delete."""
    going = msgspec.structs.replace(attempt, state="Evicting", reason=reason, message=message, then=then)
    return recorded("Evicting", spec, attempt=going, deleting=spec.deleting or then == "Delete", why=message)


def requeued(spec: BindingSpec, attempt: Attempt, reason: str, message: str, *, exclude: bool = False) -> Record:
    """An attempt before Scheduled is dropped, and quota given back; what it left behind is a stray now."""
    excluded = spec.excluded
    if exclude and attempt.cluster not in excluded:
        excluded = [*excluded, attempt.cluster]
    return recorded(
        "Requeued", spec, attempt=None, charge=None, excluded=excluded,
        why=f"{attempt.cluster}: {message}" if reason else message, exclude=attempt.cluster if exclude else "",
    )  # fmt: skip


def recorded(change: Change, spec: BindingSpec, *, why: str = "", exclude: str = "", **fields: object) -> Record:
    return Record(change=change, spec=msgspec.structs.replace(spec, **fields), why=why, exclude=exclude)


def timestamp(now: datetime) -> str:
    """RFC 3339 in UTC with microseconds, so that ages can be compared as text."""
    return now.isoformat(timespec="microseconds").replace("+00:00", "Z")
