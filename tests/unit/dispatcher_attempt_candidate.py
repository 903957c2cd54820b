"""A dispatcher of the small world: caches that may be old, one step at a time, requests that may get lost or late."""

import copy
from collections.abc import Callable
from typing import Any, Literal

from dispatcher import attempts
from dispatcher.attempts import Limits, next_step
from dispatcher.observations import CopyView, End, HubJobView, MemberView, ReservationView, Stray, View
from dispatcher.orphans import verdict
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
from kube.objects.binding import BindingSpec, Component, JobRef
from tests.unit.dispatcher_attempt_world import (
    CHARGE,
    NOW,
    PODS,
    Binding,
    Copy,
    Job,
    Lost,
    Member,
    Refused,
    Reservation,
    World,
)

Mode = Literal["done", "answer lost", "lost", "late"]


class Dispatcher:
    """One candidate with its caches. `step()` looks, decides, acts once."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.job: Job | None = None
        self.binding: Binding | None = None
        self.members: dict[str, Member] = {}
        self.doubtful = False
        self.see_hub()
        for name in world.members:
            self.see_member(name)

    def see_hub(self) -> None:
        self.job, self.binding = copy.deepcopy((self.world.job, self.world.binding))
        self.doubtful = False

    def see_member(self, name: str) -> None:
        if self.world.members[name].up:
            self.members[name] = copy.deepcopy(self.world.members[name])

    def step(self, mode: Mode = "done", cluster: str = "c1", waited: float = 0.0) -> Step:
        """`cluster`: where admission would go now."""
        if self.doubtful:
            self.see_hub()
        live: dict[str, Any] = {}
        step = self.decide(live, waited)
        for _ in range(3):
            if isinstance(step, ReadHubJob):
                self.job = copy.deepcopy(self.world.job)
                live["job_live"] = True
            elif isinstance(step, ReadBinding):
                self.binding = copy.deepcopy(self.world.binding)
                live["binding_live"] = True
            elif isinstance(step, ReadLive):
                if not self.world.members[step.cluster].up:
                    return step
                self.see_member(step.cluster)
                live["member_live"] = True
            else:
                break
            step = self.decide(live, waited)
        if isinstance(step, AwaitAdmission):
            assert self.binding is not None
            if not self.world.members[cluster].up or cluster not in self.members:
                return step
            step = attempts.reserving(self.binding.spec, cluster, "", CHARGE, NOW, excluded=[])
        try:
            self.act(step, mode)
        except Lost:
            self.doubtful = True
        except Refused:
            self.see_hub()
            if hasattr(step, "cluster"):
                self.see_member(step.cluster)
        return step

    def decide(self, live: dict[str, Any], waited: float) -> Step:
        spec = self.binding.spec if self.binding else None
        job = self.job
        view = View(
            job=HubJobView(
                uid=job.uid, job_id=job.job_id, finalizer=job.finalizer, deleting=job.deleting, policy="p"
            )
            if job
            else None,
            job_live=live.get("job_live", False),
            binding_live=live.get("binding_live", False),
            member=self._member(spec, live.get("member_live", False)),
            strays=self._strays(spec),
            waited=waited,
        )  # fmt: skip
        return next_step(spec, view, NOW, Limits())

    def _member(self, spec: BindingSpec | None, live: bool) -> MemberView | None:
        if spec is None or spec.attempt is None:
            return None
        name = spec.attempt.cluster
        if not self.world.members[name].up or name not in self.members:
            return MemberView(cluster=name, connection="Unreachable", why="silent, or not read yet")
        seen = self.members[name]
        pods = [pod for pod in seen.pods if pod.job_id == spec.job_id]
        reservation = seen.reservations.get((spec.job_id, spec.attempt.epoch))
        # The cache shows our own objects only; a live read shows whatever has the name.
        there = seen.copy if seen.copy and (live or not seen.copy.foreign) else None
        return MemberView(
            cluster=name,
            live=live,
            reservation=_reservation(reservation, spec.attempt.epoch) if reservation else None,
            copy=_copy(there) if there else None,
            pods=len(pods),
            pods_running=sum(pod.phase != "Ended" for pod in pods),
        )

    def _strays(self, spec: BindingSpec | None) -> tuple[Stray, ...]:
        if spec is None:
            return ()
        found = []
        for name, seen in self.members.items():
            if not self.world.members[name].up:
                continue
            current = spec.attempt.epoch if spec.attempt and spec.attempt.cluster == name else None
            stray = _stray(name, seen, spec.job_id, current)
            if stray is not None:
                found.append(stray)
        return tuple(found)

    def act(self, step: Step, mode: Mode) -> None:
        request = self._request(step)
        if request is None:
            return
        if hasattr(step, "cluster") and not self.world.members[step.cluster].up:
            raise Lost
        if mode == "lost":
            raise Lost
        if mode == "late":
            self.world.late.append(request)
            raise Lost
        request()
        if mode == "answer lost":
            raise Lost
        self._learn(step)

    def _request(self, step: Step) -> Callable[[], None] | None:
        world, binding = self.world, self.binding
        match step:
            case Wait() | AwaitAdmission() | ReadLive() | ReadHubJob() | ReadBinding() | RenewReservation():
                return None
            case CreateBinding():
                assert self.job is not None
                uid = self.job.uid
                return lambda: self._create_binding(uid)
            case StampJob():
                assert binding is not None
                assert self.job is not None
                uid, job_id = self.job.uid, binding.spec.job_id

                def stamp() -> None:
                    if world.job is None or world.job.uid != uid:
                        raise Refused
                    world.job.job_id = job_id
                    world.job.finalizer = True

                return stamp
            case RemoveFinalizer():
                assert self.job is not None
                uid = self.job.uid

                def remove() -> None:
                    if world.job is None or world.job.uid != uid:
                        raise Refused
                    left = world.binding
                    # A binding that a late POST made anew has never had an attempt: it may go after the job.
                    assert left is None or left.spec.job.uid != uid or not left.spec.last_epoch, "finalizer too early"
                    world.job.finalizer = False
                    if world.job.deleting:
                        world.job = None

                return remove
            case ExpireJob():
                return world.delete_job
            case Record():
                assert binding is not None
                uid, version = binding.uid, binding.version
                return lambda: world.put_binding(uid, version, step.spec)
            case RemoveBinding():
                assert binding is not None
                uid, version = binding.uid, binding.version
                return lambda: world.delete_binding(uid, version)
            case DeletePodGroup():
                return None
            case _:
                assert binding is not None
                job_id = binding.spec.job_id
                return lambda: self._in_member(step, job_id)

    def _in_member(self, step: Step, job_id: str) -> None:
        world = self.world
        match step:
            case PostReservation():
                world.post_reservation(step.cluster, job_id, step.epoch)
            case SetDispatched():
                world.set_dispatched(step.cluster, job_id, step.epoch, int(step.resource_version))
            case Dispatch():
                world.post_copy(step.cluster, job_id, step.epoch)
            case DeleteReservation():
                world.delete_reservation(step.cluster, job_id, step.epoch, step.uid, int(step.resource_version))
            case DeleteCopy():
                world.delete_copy(step.cluster, step.uid, int(step.resource_version))
            case _:
                raise TypeError(step)

    def _create_binding(self, job_uid: str) -> None:
        world = self.world
        if world.binding is not None:
            raise Refused
        spec = BindingSpec(
            hub_id="h",
            job_id=world.fresh("id-"),
            job=JobRef(api_version="kubeflow.org/v1", kind="PyTorchJob", name="j", uid=job_uid),
            queued=True,
            components=[Component(name="worker", replicas=PODS, min_replicas=PODS)],
        )
        world.binding = Binding(world.fresh("b-"), world.version(), spec)

    def _learn(self, step: Step) -> None:
        """What the answer to an own request tells."""
        if hasattr(step, "cluster"):
            self.see_member(step.cluster)
            there = self.members[step.cluster].copy
            if isinstance(step, Dispatch) and there is not None and there.foreign:
                self._name_taken()
        else:
            self.see_hub()

    def _name_taken(self) -> None:
        """AlreadyExists, and the read after it shows somebody else's job."""
        step = self.decide({"member_live": True}, 0.0)
        self.act(step, "done")


def sweep_orphans(world: World) -> None:
    """What `dispatcher.orphan_sweep` does when nothing changes meanwhile."""
    known = world.binding.spec.job_id if world.binding else ""
    for name, member in world.members.items():
        ids = {job_id for job_id, _ in member.reservations} | ({member.copy.job_id} if member.copy else set())
        for job_id in ids - {known, ""}:
            stray = _stray(name, member, job_id, None)
            if member.up and stray is not None and verdict(stray) == "Remove":
                for reservation in stray.reservations:
                    world.delete_reservation(
                        name, job_id, reservation.epoch, reservation.uid, int(reservation.resource_version)
                    )
                if stray.copy is not None:
                    world.delete_copy(name, stray.copy.uid, int(stray.copy.resource_version))


def _stray(name: str, seen: Member, job_id: str, current: int | None) -> Stray | None:
    reservations = tuple(
        _reservation(r, epoch)
        for (owner, epoch), r in seen.reservations.items()
        if owner == job_id and epoch != current
    )
    there = seen.copy if seen.copy and seen.copy.job_id == job_id and seen.copy.epoch != current else None
    pods = [pod for pod in seen.pods if pod.job_id == job_id] if current is None else []
    if not (reservations or there or pods):
        return None
    return Stray(
        cluster=name,
        reservations=reservations,
        copy=_copy(there) if there else None,
        pods=len(pods),
        pods_bound=sum(pod.phase != "Pending" for pod in pods),
    )


def _reservation(reservation: Reservation, epoch: int) -> ReservationView:
    return ReservationView(
        uid=reservation.uid,
        resource_version=str(reservation.version),
        epoch=epoch,
        dispatched=reservation.dispatched,
        state=reservation.state,
        pods_ended=reservation.pods_ended,
    )


def _copy(there: Copy) -> CopyView:
    return CopyView(
        uid=there.uid,
        resource_version=str(there.version),
        job_id=there.job_id,
        epoch=there.epoch,
        end=End(state="Succeeded", completion_time="2026-08-01T12:00:00Z") if there.ended else None,
    )
