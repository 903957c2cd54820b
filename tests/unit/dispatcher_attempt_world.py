"""A small world around the crash table: a hub, two members with extender and training operator, dispatchers with caches
that may be old, requests that get lost, lose their answer, or arrive late. It keeps the protocol's promises as
assertions and is driven by `test_dispatcher_attempts_faults`.

Everything an API server guarantees is modelled (uid, resourceVersion, preconditions, AlreadyExists), nothing more.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from kube.objects.binding import BindingSpec, Charge

NOW = datetime(2026, 8, 1, 12, 0, 0, tzinfo=UTC)
PODS = 2
CHARGE = Charge(path=["root", "team"], amounts={"cpu": "4"})


class Lost(Exception):
    """No answer: the request may or may not have been carried out."""


class Refused(Exception):
    """Conflict, NotFound, AlreadyExists: an answer that says that the world is another."""


@dataclass
class Job:
    uid: str
    job_id: str = ""
    finalizer: bool = False
    deleting: bool = False


@dataclass
class Binding:
    uid: str
    version: int
    spec: BindingSpec


@dataclass
class Reservation:
    uid: str
    version: int
    dispatched: bool = False
    state: Literal["", "Reserved", "Refused", "Landed"] = ""
    pods_ended: bool = False


@dataclass
class Copy:
    uid: str
    version: int
    job_id: str
    epoch: int
    ended: bool = False
    foreign: bool = False


@dataclass
class Pod:
    job_id: str
    epoch: int
    owner: str
    phase: Literal["Pending", "Running", "Ended"] = "Pending"


@dataclass
class Member:
    up: bool = True
    reservations: dict[tuple[str, int], Reservation] = field(default_factory=dict)
    copy: Copy | None = None
    removed_copies: list[Copy] = field(default_factory=list)
    """What an operator with an old cache still believes in."""
    pods: list[Pod] = field(default_factory=list)


class World:
    def __init__(self, members: int = 2) -> None:
        self._count = 0
        self.members = {f"c{i + 1}": Member() for i in range(members)}
        self.job: Job | None = None
        self.binding: Binding | None = None
        self.late: list[Callable[[], None]] = []
        """Requests under way whose sender has given up."""
        self.scheduled: set[tuple[str, int]] = set()
        self.ended_ids: set[str] = set()
        self.results: dict[str, Any] = {}
        self.charged: dict[str, int] = {}
        """binding uid -> charges minus releases."""

    def fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def version(self) -> int:
        self._count += 1
        return self._count

    # --- the user

    def create_job(self) -> None:
        if self.job is None:
            self.job = Job(self.fresh("job-"))

    def delete_job(self) -> None:
        if self.job is None:
            return
        if self.job.finalizer:
            self.job.deleting = True
        else:
            self.job = None

    def strip_finalizer(self) -> None:
        if self.job is not None:
            self.job.finalizer = False
            if self.job.deleting:
                self.job = None

    # --- the hub's API server

    def put_binding(self, uid: str, version: int, spec: BindingSpec) -> None:
        known = self.binding
        if known is None or known.uid != uid or known.version != version:
            raise Refused
        self._check_record(known.spec, spec)
        before, after = known.spec.charge is not None, spec.charge is not None
        self.charged[uid] = self.charged.get(uid, 0) + int(after) - int(before)
        assert self.charged[uid] in (0, 1), "quota charged or released twice"
        known.spec, known.version = spec, self.version()
        if before and not after:
            self._check_released(spec.job_id)

    def _check_record(self, before: BindingSpec, after: BindingSpec) -> None:
        assert after.last_epoch >= before.last_epoch, "epochs never go back"
        assert before.result is None or after.result is not None, "a result is final"
        assert not before.deleting or after.deleting, "deleting is never taken back"
        if after.attempt and after.attempt.state == "Scheduled":
            assert before.attempt is not None
            assert before.attempt.state == "Reserving", "Scheduled only from Reserving"
            assert after.attempt.epoch == before.attempt.epoch
            self.scheduled.add((after.job_id, after.attempt.epoch))
        if after.attempt and after.attempt.state == "Reserving":
            assert before.attempt is None, "a new attempt only when nothing of the last is left"

    def _check_released(self, job_id: str) -> None:
        running = [
            pod for m in self.members.values() for pod in m.pods if pod.job_id == job_id and pod.phase == "Running"
        ]
        assert not running, "quota was released while pods run"

    def delete_binding(self, uid: str, version: int) -> None:
        if self.binding is None or self.binding.uid != uid or self.binding.version != version:
            raise Refused
        self.charged[uid] = 0
        self._check_released(self.binding.spec.job_id)
        left = [
            name
            for name, member in self.members.items()
            if any(pod.job_id == self.binding.spec.job_id and pod.phase == "Running" for pod in member.pods)
        ]
        assert not left, f"the record of a job was removed while it runs in {left}"
        self.binding = None

    # --- members

    def post_reservation(self, name: str, job_id: str, epoch: int) -> None:
        self.members[name].reservations.setdefault((job_id, epoch), Reservation(self.fresh("r-"), self.version()))

    def set_dispatched(self, name: str, job_id: str, epoch: int, version: int) -> None:
        reservation = self.members[name].reservations.get((job_id, epoch))
        if reservation is None or reservation.version != version:
            raise Refused
        assert (job_id, epoch) in self.scheduled, "dispatched before Scheduled was recorded"
        reservation.dispatched, reservation.version = True, self.version()

    def post_copy(self, name: str, job_id: str, epoch: int) -> None:
        member = self.members[name]
        if member.copy is None:
            assert (job_id, epoch) in self.scheduled, "posted before Scheduled was recorded"
            member.copy = Copy(self.fresh("copy-"), self.version(), job_id, epoch)

    def delete_reservation(self, name: str, job_id: str, epoch: int, uid: str, version: int) -> None:
        member = self.members[name]
        known = member.reservations.get((job_id, epoch))
        if known is None or known.uid != uid or known.version != version:
            raise Refused
        del member.reservations[job_id, epoch]

    def delete_copy(self, name: str, uid: str, version: int) -> None:
        member = self.members[name]
        if member.copy is None or member.copy.uid != uid or member.copy.version != version:
            raise Refused
        assert not member.copy.foreign, "an object that muster did not make was deleted"
        member.removed_copies.append(member.copy)
        member.copy = None

    # --- what goes on in a member

    def judge(self, name: str, *, fits: bool) -> None:
        for reservation in self.members[name].reservations.values():
            if reservation.state == "":
                reservation.state = "Reserved" if fits else "Refused"
                reservation.version = self.version()

    def expire(self, name: str) -> None:
        """TTL before dispatch; after it the landing deadline. A status write carries its resourceVersion."""
        for reservation in self.members[name].reservations.values():
            if reservation.state in ("", "Reserved"):
                reservation.state, reservation.version = "Refused", self.version()

    def admit(self, name: str) -> None:
        member = self.members[name]
        for pod in member.pods:
            reservation = member.reservations.get((pod.job_id, pod.epoch))
            if pod.phase == "Pending" and reservation and reservation.dispatched and reservation.state != "Refused":
                if reservation.pods_ended:
                    continue
                self._check_start(name, pod)
                pod.phase = "Running"
                if reservation.state != "Landed":
                    reservation.state, reservation.version = "Landed", self.version()

    def _check_start(self, name: str, pod: Pod) -> None:
        others = [
            (n, p)
            for n, m in self.members.items()
            for p in m.pods
            if p.phase == "Running" and (n, p.owner) != (name, pod.owner)
        ]
        assert not others, f"runs twice: {pod} in {name} beside {others}"
        assert pod.job_id not in self.ended_ids, "a finished job runs again"

    def operate(self, name: str) -> None:
        member = self.members[name]
        there = member.copy
        # Names are those of the job: pods of another copy stand in the way until they are gone.
        if there is not None and not there.ended and not there.foreign and not member.pods:
            member.pods += [Pod(there.job_id, there.epoch, there.uid) for _ in range(PODS)]

    def operate_with_old_cache(self, name: str) -> None:
        member = self.members[name]
        if member.removed_copies:
            old = member.removed_copies.pop()
            if not old.ended and not member.pods:
                member.pods.append(Pod(old.job_id, old.epoch, old.uid))

    def collect_garbage(self, name: str) -> None:
        member = self.members[name]
        owner = member.copy.uid if member.copy else ""
        member.pods = [pod for pod in member.pods if pod.owner == owner]

    def end_job(self, name: str) -> None:
        member = self.members[name]
        there = member.copy
        if there is None or there.ended or there.foreign:
            return
        pods = [pod for pod in member.pods if pod.owner == there.uid]
        if pods and all(pod.phase == "Running" for pod in pods):
            for pod in pods:
                pod.phase = "Ended"
            there.ended, there.version = True, self.version()
            self.ended_ids.add(there.job_id)
            reservation = member.reservations.get((there.job_id, there.epoch))
            if reservation is not None:
                reservation.pods_ended, reservation.version = True, self.version()

    def delete_copy_by_hand(self, name: str) -> None:
        """Not of an ended copy while a second POST of it is still under way: hub and extender together could not tell
        the copy that it makes from a pod that is made again."""
        member = self.members[name]
        if member.copy is not None and not (member.copy.ended and self.late):
            member.removed_copies.append(member.copy)
            member.copy = None

    def occupy_name(self, name: str) -> None:
        """Somebody in the member makes a job of this name."""
        if self.members[name].copy is None:
            self.members[name].copy = Copy(self.fresh("copy-"), self.version(), "", 0, foreign=True)

    def vacate_name(self, name: str) -> None:
        there = self.members[name].copy
        if there is not None and there.foreign:
            self.members[name].copy = None
