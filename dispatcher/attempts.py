"""The crash table: what follows from what is recorded and what is seen. Pure; one function per recorded state.

    Reserving -> Scheduled -> Landed -> Finished (result recorded) -> gone
        |            |           |
        v            +-----------+--> Evicting -> queued (a higher epoch)
     queued (a higher epoch)

Scheduled is the point of no return: before it an attempt may be dropped unseen, after it only evict, fence or finish
end it. The numbers in brackets are those of the rules in docs/PROTOCOL.md.

Called again after every step, restart and event with whatever is true then; each answer is right on its own, so a
crash between any two steps loses nothing. "Landed" is recorded as soon as the copy has been seen in the member: from
then on it is never posted again [5].
"""

from datetime import datetime, timedelta

import msgspec

from dispatcher.attempt_records import LOST_END, LOST_RESULT, evicting, finished, moved, recorded, requeued, timestamp
from dispatcher.observations import CopyView, HubJobView, MemberView, ReservationView, Stray, View
from dispatcher.steps import (
    AwaitAdmission,
    CreateBinding,
    DeleteCopy,
    DeletePodGroup,
    DeleteReservation,
    Dispatch,
    ExpireJob,
    PostReservation,
    ReadBinding,
    ReadHubJob,
    ReadLive,
    Record,
    RemoveBinding,
    RemoveFinalizer,
    RenewReservation,
    SetDispatched,
    StampJob,
    Step,
    Wait,
)
from kube.objects.binding import Attempt, BindingSpec, Charge, Result


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, on the hub's monotonic clock."""

    answer_seconds: float = 30.0
    """A reservation not judged by then is given up: the extender is down."""
    silence_seconds: float = 15.0
    """An attempt before Scheduled in a member that stays unreachable this long is given up."""
    checks_seconds: float = 3600.0
    """Others' admission checks that are pending for so long give quota and room back."""
    renew_seconds: float = 20.0
    """How often the TTL of a pending claim is restarted; below a third of it."""


def next_step(spec: BindingSpec | None, view: View, now: datetime, limits: Limits) -> Step:
    """The one thing to do now for a job. `spec`: its binding's, None without a binding. `now`: wall time, for
    timestamps and the user's TTL only."""
    if spec is None:
        return _without_binding(view)
    gone = spec.deleting or _job_gone(spec, view)
    if gone is None:
        return ReadHubJob()
    if not gone and view.job and view.job.uid != spec.job.uid:
        return recorded("Rejoined", spec, job=msgspec.structs.replace(spec.job, uid=view.job.uid))
    if (gone and not spec.deleting) or (spec.deleting and spec.attempt and spec.attempt.state in _LIVE):
        return _delete(spec)
    if stray := _stray_step(spec, view):
        return stray
    if spec.attempt is None:
        if spec.deleting:
            return RemoveBinding()
        if spec.result is not None:  # somebody removed the attempt by hand: finished all the same
            return _await_ttl(spec.result, view.job, now)
        return _queued(spec, view)
    member = view.member
    if member is None:
        return Wait(reason="Unreachable", message=f"cluster {spec.attempt.cluster} is not known to the hub")
    if spec.attempt.cluster_uid and member.cluster_uid and spec.attempt.cluster_uid != member.cluster_uid:
        member = msgspec.structs.replace(
            member, connection="Replaced", why="another cluster answers under this name"
        )  # [17]
    match spec.attempt.state:
        case "Reserving":
            return _reserving(spec, spec.attempt, member, view, now, limits=limits)
        case "Scheduled" | "Landed":
            return _placed(spec, spec.attempt, member, view, now)
        case "Evicting":
            return _evicting(spec, spec.attempt, member, now)
        case "Finished":
            return _finished(spec, spec.attempt, member, view, now)


def reserving(
    spec: BindingSpec,
    cluster: str,
    cluster_uid: str,
    charge: Charge | None,
    now: datetime,
    *,
    excluded: list[str],
    claim: bool = False,
) -> Record:
    """The record that starts an attempt. Only for a binding that `next_step` answered AwaitAdmission for [8].
    `excluded`: members still not to be asked again. `claim`: it does not fit there now."""
    if spec.attempt is not None or spec.deleting or spec.result is not None:
        raise ValueError(f"{spec.job.name} is not waiting for admission")
    attempt = Attempt(
        cluster=cluster,
        cluster_uid=cluster_uid,
        epoch=spec.last_epoch + 1,
        state="Reserving",
        started_at=timestamp(now),
        claim=claim,
    )
    return recorded(
        "Reserving", spec, attempt=attempt, charge=charge, last_epoch=attempt.epoch, excluded=list(excluded)
    )


def rejected(spec: BindingSpec, message: str) -> Record:
    """The member's API server refused a step of the attempt for good (admission, quota, validation)."""
    attempt = spec.attempt
    if attempt is None or attempt.state in ("Evicting", "Finished"):
        raise ValueError(f"{spec.job.name} has no attempt that could be rejected")
    if attempt.state == "Reserving":
        return requeued(spec, attempt, "Rejected", message, exclude=True)
    return evicting(spec, attempt, "Rejected", message, then="Queue")


def evict(spec: BindingSpec, reason: str, message: str) -> Record | None:
    """Take a placed job back and queue it again with its age kept (preemption, drain, failover). None: no need."""
    attempt = spec.attempt
    if attempt is None or attempt.state in ("Evicting", "Finished"):
        return None
    if attempt.state == "Reserving":
        return requeued(spec, attempt, reason, message)
    return evicting(spec, attempt, reason, message, then="Queue")


EXCLUDING = frozenset({"Rejected", "Refused", "ReservationLost", "NameTaken", "NoAnswer", "Unreachable", "Fenced"})
"""Reasons of an attempt's end for which its member is not asked again for a while."""


_LIVE = ("Reserving", "Scheduled", "Landed")
"""States that a deletion is recorded in first."""


def _without_binding(view: View) -> Step:
    job = view.job
    if job is None:
        return Wait(reason="Nothing")
    if job.deleting:
        if not job.finalizer:
            return Wait(reason="Nothing")
        return RemoveFinalizer() if view.binding_live else ReadBinding()  # [6]
    if not job.policy:
        return Wait(reason="NoPolicy")
    return CreateBinding()


def _job_gone(spec: BindingSpec, view: View) -> bool | None:
    """Whether the user's job of this binding is gone or going; None: only a live read can tell [6].

    The same job is the one with our uid, or, after a restore, the one that carries our id. Any other job of this name
    is a new one, which waits until this binding is gone."""
    if view.job is None:
        return True if view.job_live else None
    return view.job.deleting or (view.job.uid != spec.job.uid and view.job.job_id != spec.job_id)


def _delete(spec: BindingSpec) -> Step:
    attempt = spec.attempt
    if attempt is None:
        return recorded("Deleting", spec, deleting=True)
    match attempt.state:
        case "Reserving":  # may be dropped unseen; what it left is a stray now
            return recorded("Deleting", spec, deleting=True, attempt=None, charge=None)
        case "Finished":
            return recorded("Deleting", spec, deleting=True)
        case _:
            return evicting(spec, attempt, "Deleted", "the job was deleted on the hub", then="Delete")


def _stray_step(spec: BindingSpec, view: View) -> Step | None:
    """Objects of this id that belong to no current attempt: adopted if the hub forgot them [18], else removed [8].

    Only what is older than the recorded attempt is removed: something newer means that our copy of the binding is old,
    which the PUT finds out, or that the hub was restored."""
    attempt = spec.attempt
    if spec.result is None and (attempt is None or attempt.state == "Reserving"):
        known = attempt.epoch - 1 if attempt else spec.last_epoch
        highest = spec.last_epoch
        for stray in view.strays:
            if stray.copy and stray.copy.epoch > known and not spec.deleting:
                return _adopt(spec, stray.cluster, stray.copy)
            epochs = [r.epoch for r in stray.reservations] + ([stray.copy.epoch] if stray.copy else [])
            highest = max(highest, *epochs, 0)
        if highest > spec.last_epoch:
            return recorded("EpochRaised", spec, attempt=None, charge=None, last_epoch=highest)
    dead = attempt.epoch - 1 if attempt else spec.last_epoch
    for stray in view.strays:
        for reservation in stray.reservations:
            if reservation.epoch <= dead and not reservation.deleting:
                return DeleteReservation(
                    stray.cluster, reservation.epoch, reservation.uid, reservation.resource_version
                )
        if stray.copy and stray.copy.epoch <= dead and not stray.copy.deleting:
            return DeleteCopy(stray.cluster, stray.copy.uid, stray.copy.resource_version)
    if attempt is None:
        for stray in view.strays:
            if _leftover(stray):
                return Wait(reason="StrayPods", message=f"{stray.cluster}: earlier pods of this job are ending")
    return None


def _leftover(stray: Stray) -> bool:
    return bool(stray.pods or stray.copy or stray.reservations)


def _adopt(spec: BindingSpec, cluster: str, copy: CopyView) -> Record:
    attempt = Attempt(cluster=cluster, epoch=copy.epoch, state="Landed", reason="Adopted")
    return recorded("Adopted", spec, attempt=attempt, last_epoch=copy.epoch, why=f"{cluster} runs epoch {copy.epoch}")


def _queued(spec: BindingSpec, view: View) -> Step:
    job = view.job
    if job is None:
        return ReadHubJob()
    if job.job_id != spec.job_id or not job.finalizer:
        return StampJob()
    if job.problem:
        return Wait(reason="Invalid", message=job.problem)
    if view.intent and (changed := _refreshed(spec, view)) != spec:
        return Record(change="Refreshed", spec=changed, why="the job or its policy was edited")
    if not job.policy:
        return Wait(reason="NoPolicy", message="no PropagationPolicy selects this job any more")
    if job.suspended:
        return Wait(reason="Suspended", message="the job is suspended by runPolicy.suspend")
    if job.hold:
        return Wait(reason="Held", message=job.hold)
    return AwaitAdmission()


def _refreshed(spec: BindingSpec, view: View) -> BindingSpec:
    if view.intent is None:
        return spec
    return msgspec.structs.replace(spec, **{f: getattr(view.intent, f) for f in view.intent.__struct_fields__})


def _reserving(
    spec: BindingSpec, attempt: Attempt, member: MemberView, view: View, now: datetime, *, limits: Limits
) -> Step:
    job = view.job
    if member.connection in ("Fenced", "Replaced"):
        return requeued(spec, attempt, "Unreachable", f"{member.connection.lower()}: {member.why}", exclude=True)
    if member.connection == "Unreachable":
        if view.waited >= limits.silence_seconds:
            return requeued(spec, attempt, "Unreachable", f"not reachable: {member.why}", exclude=True)
        return Wait(reason="Unreachable", message=member.why, wake_after=limits.silence_seconds - view.waited)
    if _ours(member.copy, spec, attempt):  # only after a restore: the hub forgot that it had gone on [18]
        return recorded("Adopted", spec, attempt=moved(attempt, "Landed", now))
    if job and (job.suspended or job.problem or not job.policy or _edited(spec, view)):
        return requeued(spec, attempt, "Changed", "the job was suspended or edited while room was being reserved")
    reservation = member.reservation
    if reservation is not None:
        if reservation.state == "Refused" or reservation.deleting:
            return requeued(spec, attempt, "Refused", reservation.message or reservation.reason, exclude=True)
        if reservation.state in ("Reserved", "Landed"):
            if view.checks_failed or view.checks_pending:
                return _checked(spec, attempt, reservation, view, limits)
            return recorded("Scheduled", spec, attempt=moved(attempt, "Scheduled", now))  # [2]
    overdue = view.waited >= limits.answer_seconds
    if reservation is not None and reservation.claim:
        due = int(view.waited // limits.renew_seconds)
        if reservation.renewals < due:
            return RenewReservation(attempt.cluster, attempt.epoch, reservation.resource_version, due)
        return Wait(reason="AwaitingAnswer", message="room is being freed", wake_after=limits.renew_seconds)
    if overdue:
        text = f"its extender did not answer within {limits.answer_seconds:.0f}s"
        return requeued(spec, attempt, "NoAnswer", text, exclude=True)
    if reservation is None:
        return PostReservation(attempt.cluster, attempt.epoch)
    return Wait(
        reason="AwaitingAnswer",
        message=f"waiting for {attempt.cluster} to reserve",
        wake_after=limits.answer_seconds - view.waited,
    )


def _checked(spec: BindingSpec, attempt: Attempt, reservation: ReservationView, view: View, limits: Limits) -> Step:
    """Quota and room are held while others' admission checks are pending; a check that failed gives both back."""
    if view.checks_failed:
        return requeued(spec, attempt, "AdmissionCheck", f"admission check failed: {view.checks_failed}", exclude=True)
    if view.waited >= limits.checks_seconds:
        text = f"no answer of admission check {view.checks_pending} within {limits.checks_seconds:.0f}s"
        return requeued(spec, attempt, "AdmissionCheck", text, exclude=True)
    due = int(view.waited // limits.renew_seconds)
    if reservation.renewals < due:
        return RenewReservation(attempt.cluster, attempt.epoch, reservation.resource_version, due)
    return Wait(
        reason="AwaitingAnswer",
        message=f"room is reserved; waiting for admission check {view.checks_pending}",
        wake_after=limits.renew_seconds,
    )


def _placed(spec: BindingSpec, attempt: Attempt, member: MemberView, view: View, now: datetime) -> Step:
    if member.connection == "Fenced":
        return evicting(spec, attempt, "Fenced", f"{member.cluster} was fenced: {member.why}", then="Queue")
    if member.connection != "Reachable":
        return _unreachable(member)
    copy = member.copy if _ours(member.copy, spec, attempt) else None
    if copy and copy.end:
        return finished(spec, attempt, copy.end, now)
    if view.job and view.job.suspended:
        return evicting(spec, attempt, "Suspended", "the job was suspended by runPolicy.suspend", then="Hold")
    reservation = member.reservation
    if reservation is None:
        if not member.live:
            return ReadLive(member.cluster)  # [6]
        return evicting(spec, attempt, "ReservationLost", "its reservation is gone", then="Queue")  # [5]
    if reservation.state == "Refused":
        return evicting(spec, attempt, "Refused", reservation.message or reservation.reason, then="Queue")  # [5]
    if copy is None:
        if reservation.pods_ended:  # it ran to its end, and the copy went before the hub saw how [9]
            return finished(spec, attempt, LOST_END, now) if member.live else ReadLive(member.cluster)
        if attempt.state == "Landed":
            if not member.live:
                return ReadLive(member.cluster)  # [6]
            return evicting(spec, attempt, "CopyMissing", f"its copy in {member.cluster} is gone", then="Queue")  # [5]
        if member.copy is not None:
            if member.copy.job_id == spec.job_id and member.copy.epoch < attempt.epoch:
                return DeleteCopy(member.cluster, member.copy.uid, member.copy.resource_version)
            return evicting(
                spec, attempt, "NameTaken",
                f"another {spec.job.kind} of this name is there, which muster did not make", then="Queue",
            )  # fmt: skip
        if _edited(spec, view):
            return evicting(spec, attempt, "Changed", "the job was edited before it was dispatched", then="Queue")
    if not reservation.dispatched:
        return SetDispatched(member.cluster, attempt.epoch, reservation.resource_version)  # [2]
    if copy is None:
        return Dispatch(member.cluster, attempt.epoch)
    if attempt.state == "Scheduled":
        return recorded("Landed", spec, attempt=msgspec.structs.replace(attempt, state="Landed"))
    return Wait(reason="Running")


def _evicting(spec: BindingSpec, attempt: Attempt, member: MemberView, now: datetime) -> Step:
    """[3]: delete the reservation, then the copy, then list pods until none is left, only then release."""
    if member.connection == "Fenced":
        return _released(spec, attempt)
    if member.connection != "Reachable":
        return _unreachable(member)
    if member.reservation is not None:
        if member.reservation.deleting:
            return Wait(reason="Ending", message="its reservation is being deleted")
        if member.reservation.pods_ended and not _ours(member.copy, spec, attempt):
            return finished(spec, attempt, LOST_END, now) if member.live else ReadLive(member.cluster)  # [9]
        return DeleteReservation(
            member.cluster, attempt.epoch, member.reservation.uid, member.reservation.resource_version
        )
    copy = member.copy
    if copy is not None and _ours(copy, spec, attempt):
        if copy.end:
            return finished(spec, attempt, copy.end, now)  # [4]
        if copy.deleting:
            return Wait(reason="Ending", message=f"its copy in {member.cluster} is being deleted")
        return DeleteCopy(member.cluster, copy.uid, copy.resource_version)  # [4]
    if not member.live:
        return ReadLive(member.cluster)  # [6]
    if member.pod_group is not None and not member.pod_group.deleting:
        return DeletePodGroup(member.cluster, member.pod_group.uid, member.pod_group.resource_version)
    if member.pods:
        return Wait(reason="PodsEnding", message=f"{member.pods} pods in {member.cluster} are ending")
    return _released(spec, attempt)


def _released(spec: BindingSpec, attempt: Attempt) -> Step:
    if spec.deleting:
        return RemoveBinding()
    excluded, exclude = spec.excluded, attempt.reason in EXCLUDING
    if exclude and attempt.cluster not in excluded:
        excluded = [*excluded, attempt.cluster]
    return recorded(
        "Released", spec, attempt=None, charge=None, excluded=excluded, why=attempt.message,
        exclude=attempt.cluster if exclude else "",
    )  # fmt: skip


def _finished(spec: BindingSpec, attempt: Attempt, member: MemberView, view: View, now: datetime) -> Step:
    """[3]: delete the reservation, keep the copy [9], list pods until none may still run, release."""
    result = spec.result
    if result is None:
        return _how_it_ended(spec, attempt, member, now)
    fenced = member.connection == "Fenced"
    if spec.deleting and fenced:
        return RemoveBinding()
    if not result.released and fenced:
        return _finish_released(spec, result)
    late = member.connection == "Reachable" and member.reservation is not None and not member.reservation.deleting
    if result.released and not spec.deleting and not late:
        return _await_ttl(result, view.job, now)
    if member.connection != "Reachable":
        return _unreachable(member)
    if member.reservation is not None and not member.reservation.deleting:
        return DeleteReservation(
            member.cluster, attempt.epoch, member.reservation.uid, member.reservation.resource_version
        )
    if spec.deleting:
        copy = member.copy
        if copy is not None and _ours(copy, spec, attempt):
            if copy.deleting:
                return Wait(reason="Ending", message=f"its copy in {member.cluster} is being deleted")
            return DeleteCopy(member.cluster, copy.uid, copy.resource_version)
    elif result.released:
        return _await_ttl(result, view.job, now)
    elif member.pods_running:
        return Wait(reason="WorkersRunning", message=f"{member.pods_running} pods still run")
    if not member.live:
        return ReadLive(member.cluster)  # [6]
    if spec.deleting:
        if member.pod_group is not None and not member.pod_group.deleting:
            return DeletePodGroup(member.cluster, member.pod_group.uid, member.pod_group.resource_version)
        if member.pods:
            return Wait(reason="PodsEnding", message=f"{member.pods} pods in {member.cluster} are ending")
        return RemoveBinding()
    return _finish_released(spec, result)


def _how_it_ended(spec: BindingSpec, attempt: Attempt, member: MemberView, now: datetime) -> Step:
    """Finished without a result: the record was damaged by hand. Its copy tells; without one it is not run again."""
    if spec.deleting:
        return evicting(spec, attempt, "Deleted", "the job was deleted on the hub", then="Delete")
    copy = member.copy
    if copy is not None and _ours(copy, spec, attempt):
        if copy.end:
            return finished(spec, attempt, copy.end, now)
        return recorded("Landed", spec, attempt=moved(attempt, "Landed", now), why="its copy has not ended")
    if member.connection != "Reachable":
        return _unreachable(member)
    return finished(spec, attempt, LOST_RESULT, now) if member.live else ReadLive(member.cluster)  # [6]


def _finish_released(spec: BindingSpec, result: Result) -> Record:
    return recorded("FinishReleased", spec, result=msgspec.structs.replace(result, released=True), charge=None)


def _await_ttl(result: Result, job: HubJobView | None, now: datetime) -> Step:
    if job is None or job.ttl_seconds is None or not result.completion_time:
        return Wait(reason="Finished")
    try:
        ended = datetime.fromisoformat(result.completion_time)
    except ValueError:
        return Wait(reason="Finished", message=f"completion time {result.completion_time!r} cannot be read: no TTL")
    left = (ended + timedelta(seconds=job.ttl_seconds) - now).total_seconds()
    return ExpireJob(job.uid) if left <= 0 else Wait(reason="Finished", wake_after=left)


def _unreachable(member: MemberView) -> Wait:
    return Wait(reason="Unreachable", message=f"{member.cluster}: {member.why or member.connection.lower()}")  # [15]


def _ours(copy: CopyView | None, spec: BindingSpec, attempt: Attempt) -> bool:
    return copy is not None and copy.job_id == spec.job_id and copy.epoch == attempt.epoch


def _edited(spec: BindingSpec, view: View) -> bool:
    """The gang no longer is what room was asked for."""
    intent = view.intent
    return intent is not None and (intent.components != spec.components or intent.min_member != spec.min_member)
