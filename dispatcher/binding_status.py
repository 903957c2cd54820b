"""A binding's status from its spec and from what its job waits for. Pure.

Phases: Held, Queued, Reserving, Scheduled, Running, Evicting, Succeeded, Failed, Invalid, Deleting.
"""

import msgspec

from dispatcher import reasons
from dispatcher.steps import Wait
from kube.objects.binding import BindingSpec, BindingStatus, ClusterReason
from kube.objects.meta import Condition


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Why the job is where it is."""

    wait: Wait | None = None
    clusters: tuple[ClusterReason, ...] = ()
    quota: str = ""
    """The sentence about its queue."""
    tried: bool = False
    """Members or quota have been asked: the reasons say something."""
    running: Condition | None = None
    """From the member's job; None: none is there."""
    policies: str = ""


def phase(spec: BindingSpec, waiting: Waiting) -> str:
    attempt = spec.attempt
    if spec.deleting:
        return "Deleting"
    if spec.result is not None:
        return spec.result.state
    if attempt is None:
        reason = waiting.wait.reason if waiting.wait else ""
        if reason == "Invalid":
            return "Invalid"
        return "Held" if reason in ("Held", "Suspended", "NoPolicy") else "Queued"
    if attempt.state == "Landed":
        return "Running" if waiting.running is not None and waiting.running.status == "True" else "Scheduled"
    return attempt.state


def status(spec: BindingSpec, waiting: Waiting, previous: BindingStatus, now: str, generation: int) -> BindingStatus:
    """The status to write. Equal to `previous` where nothing but ages would change."""
    wanted = {c.type: c for c in _conditions(spec, waiting)}
    if waiting.running is not None:
        wanted["Running"] = waiting.running
    kept: list[Condition] = []
    before = {c.type: c for c in previous.conditions}
    for type_, condition in wanted.items():
        known = before.get(type_)
        if known is not None and _alike(known, condition):
            kept.append(msgspec.structs.replace(known, observed_generation=generation))
            continue
        same_status = known is not None and known.status == condition.status
        kept.append(
            msgspec.structs.replace(
                condition,
                last_transition_time=known.last_transition_time if known and same_status else now,
                observed_generation=generation,
            )
        )
    clusters = list(waiting.clusters) if spec.attempt is None and spec.result is None else []
    if [_ageless(r) for r in previous.reasons] == [_ageless(r) for r in clusters]:
        clusters = previous.reasons
    return BindingStatus(
        phase=phase(spec, waiting), conditions=kept, reasons=clusters, observed_generation=generation
    )  # fmt: skip


def why_waiting(spec: BindingSpec, waiting: Waiting) -> str:
    """One line for people; "" if it does not wait or has not been tried."""
    if spec.attempt is not None or spec.result is not None or spec.deleting:
        return ""
    if waiting.wait is not None:
        return waiting.wait.message
    return reasons.waiting(waiting.clusters, waiting.quota) if waiting.tried else ""


def _conditions(spec: BindingSpec, waiting: Waiting) -> list[Condition]:
    invalid = waiting.wait is not None and waiting.wait.reason == "Invalid"
    found = [
        Condition(
            type="Valid",
            status="False" if invalid else "True",
            reason="InvalidJob" if invalid else "Accepted",
            message=waiting.wait.message if invalid and waiting.wait else "",
        ),
        _scheduled(spec, waiting),
    ]
    attempt = spec.attempt
    if attempt is not None and attempt.state == "Evicting":
        message = f"{attempt.message}; {waiting.wait.message}" if waiting.wait else attempt.message
        found.append(Condition(type="Evicting", status="True", reason=attempt.reason or "Evicted", message=message))
    return found


def _scheduled(spec: BindingSpec, waiting: Waiting) -> Condition:
    attempt = spec.attempt
    if attempt is not None and attempt.state in ("Scheduled", "Landed", "Finished"):
        text = reasons.scheduled(attempt.cluster, spec.components)
        if waiting.wait is not None and waiting.wait.reason == "Unreachable":
            text += f" (now: {waiting.wait.message})"
        return Condition(type="Scheduled", status="True", reason="Success", message=text)
    if attempt is not None and attempt.state == "Reserving":
        return Condition(
            type="Scheduled", status="False", reason="Reserving", message=f"{attempt.cluster} was asked for room"
        )
    if attempt is not None:
        return Condition(type="Scheduled", status="False", reason="Evicting", message=attempt.message)
    if waiting.wait is not None:
        return Condition(
            type="Scheduled", status="False", reason=waiting.wait.reason, message=waiting.wait.message
        )  # fmt: skip
    text = why_waiting(spec, waiting)
    if not text:
        return Condition(type="Scheduled", status="False", reason="Queued", message="waiting for its turn")
    reason = "QuotaExceeded" if waiting.quota and not waiting.clusters else "NoClusterFits"
    return Condition(type="Scheduled", status="False", reason=reason, message=text)


def _alike(left: Condition, right: Condition) -> bool:
    return (left.status, left.reason, reasons.event_form(left.message)) == (
        right.status, right.reason, reasons.event_form(right.message),
    )  # fmt: skip


def _ageless(reason: ClusterReason) -> tuple[str, str]:
    return (reason.cluster, reasons.event_form(reason.message))
