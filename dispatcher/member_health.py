"""Whether a member can be trusted with a question, and with a new job. Pure: observations in, verdict out.

Reachable (may be read and written): it answered lately, its caches are synced, it is the cluster it was.
Ready (may get new jobs): reachable, its extender's Lease is renewed, it reports capacity, for `steady_seconds` on end.
Ages are counted on the hub's monotonic clock from what the hub observed; nobody's wall clock is read.
"""

import math
from typing import Literal

import msgspec

from kube.objects.meta import Condition

Connection = Literal["Reachable", "Unreachable", "Replaced", "Fenced"]


class Health(msgspec.Struct, kw_only=True):
    """What has been observed of one member. Mutable, written by the member's shell; -inf: never."""

    refused: str = ""
    """Why its kubeconfig cannot be used."""
    answered_at: float = -math.inf
    failure: str = "not contacted yet"
    """The last failure, for people."""
    unsynced: tuple[str, ...] = ("everything",)
    """What has not been read completely yet."""
    missing: str = ""
    """What it lacks to run gangs: a CRD, a dialect."""
    other_hub: str = ""
    """Set while another hub's Lease is there: two hubs must not share a member."""
    cluster_uid: str = ""
    accepted_uid: str = ""
    """The uid that the hub recorded; another one is another cluster (rule 17)."""
    beat_at: float = -math.inf
    """Last renewal of the extender's Lease that was seen to happen."""
    reported_at: float = -math.inf
    """Last change of its ClusterCapacity that was seen to happen (its first sight counts)."""
    has_report: bool = False
    well_since: float = -math.inf
    """Since when everything has been well on end; -inf while it is not."""
    ever_ready: bool = False
    """Ready once in this process: the first time needs no steadying."""


class Periods(msgspec.Struct, frozen=True, kw_only=True):
    silence_seconds: float
    heartbeat_seconds: float
    steady_seconds: float


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    connection: Connection
    ready: bool
    reason: str
    """CamelCase."""
    message: str
    """Without ages: it goes into a condition."""
    fresh: bool
    """The extender is alive and has reported."""
    report_age: float | None
    """Seconds since the report was known to be true; None: never."""


def judge(health: Health, now: float, periods: Periods, *, fenced: bool = False) -> Verdict:
    """Also advances `health`'s hysteresis: call it at each look."""
    connection, reason, message = _connection(health, now, periods, fenced=fenced)
    beating = now - health.beat_at <= periods.heartbeat_seconds
    age = now - max(health.beat_at, health.reported_at) if health.has_report else None
    fresh = beating and health.has_report
    well = connection == "Reachable" and not health.missing and not health.other_hub and fresh
    if not well:
        health.well_since = -math.inf
        if connection == "Reachable":
            reason, message = _not_serving(health, beating=beating)
        return _verdict(connection, reason, message, fresh=fresh, age=age)
    if health.well_since == -math.inf:
        health.well_since = now
    if health.ever_ready and now - health.well_since < periods.steady_seconds:
        return _verdict(connection, "Steadying", "it is back; waiting until it is steady", fresh=True, age=age)
    health.ever_ready = True
    health.well_since = min(health.well_since, now - periods.steady_seconds)
    return _verdict(connection, "ClusterReady", "it answers, and its extender reports", fresh=True, age=age, ready=True)


def _verdict(
    connection: Connection, reason: str, message: str, *, fresh: bool, age: float | None, ready: bool = False
) -> Verdict:
    return Verdict(connection=connection, ready=ready, reason=reason, message=message, fresh=fresh, report_age=age)


def _connection(health: Health, now: float, periods: Periods, *, fenced: bool) -> tuple[Connection, str, str]:
    if fenced:
        return "Fenced", "Fenced", "fenced by an admin: its nodes are promised to be off"
    if health.refused:
        return "Unreachable", "KubeconfigRefused", health.refused
    if health.accepted_uid and health.cluster_uid and health.accepted_uid != health.cluster_uid:
        return (
            "Replaced",
            "ClusterReplaced",
            (
                f"another cluster answers: its kube-system namespace has uid {health.cluster_uid}, not "
                f"{health.accepted_uid}; if that is meant, clear status.clusterUID"
            ),
        )
    if now - health.answered_at > periods.silence_seconds:
        return "Unreachable", "ClusterNotReachable", health.failure or "it does not answer"
    if not health.cluster_uid:
        return "Unreachable", "ClusterNotRead", "its kube-system namespace has not been read yet"
    if health.unsynced:
        return "Unreachable", "ClusterNotRead", f"not read completely yet: {', '.join(health.unsynced)}"
    return "Reachable", "", ""


def _not_serving(health: Health, *, beating: bool) -> tuple[str, str]:
    if health.other_hub:
        return "OtherHub", health.other_hub
    if health.missing:
        return "CannotRunGangs", health.missing
    if not health.has_report:
        return "NoCapacityReport", "its extender has not reported capacity: is muster-extender running there?"
    if not beating:
        return "ExtenderSilent", "its extender does not renew Lease muster-system/muster-extender"
    return "NotReady", "not ready"


def conditions(verdict: Verdict, previous: list[Condition], wall: str, generation: int) -> list[Condition]:
    """Ready and CapacityFresh for the MemberCluster's status; lastTransitionTime moves only with status."""
    wanted = [
        Condition(
            type="Ready", status="True" if verdict.ready else "False", reason=verdict.reason, message=verdict.message
        ),
        Condition(
            type="CapacityFresh",
            status="True" if verdict.fresh else "False",
            reason="HeartbeatSeen" if verdict.fresh else "NoHeartbeat",
            message="" if verdict.fresh else "no recent sign of life from its extender",
        ),
    ]
    before = {c.type: c for c in previous}
    for condition in wanted:
        known = before.pop(condition.type, None)
        same = known is not None and known.status == condition.status
        condition.last_transition_time = known.last_transition_time if known and same else wall
        condition.observed_generation = generation
    return [*wanted, *before.values()]
