"""What a member holds of ours, found by job id: reservations, copies, pods. Fed by watches, read without waiting."""

from collections.abc import Callable, Iterator

import msgspec

from dispatcher.observations import CopyView, MemberView, ReservationView, Stray
from dispatcher.views import copy_view, reservation_view
from kube.api.reflector import Change
from kube.objects.meta import Json, ObjectMeta
from kube.objects.names import HUB_ID, JOB_ID
from kube.objects.reservation import GangReservation

Key = tuple[str, str]


class CopySeen(msgspec.Struct):
    """A PyTorchJob in a member: what the mirror and the attempt read."""

    metadata: ObjectMeta
    status: Json | None = None


class PodPhase(msgspec.Struct):
    phase: str = ""


class PodNode(msgspec.Struct, rename="camel"):
    node_name: str = ""


class PodSeen(msgspec.Struct):
    metadata: ObjectMeta
    spec: PodNode = msgspec.field(default_factory=PodNode)
    status: PodPhase = msgspec.field(default_factory=PodPhase)

    @property
    def may_run(self) -> bool:
        return self.status.phase not in ("Succeeded", "Failed")

    @property
    def bound(self) -> bool:
        return bool(self.spec.node_name)


class MemberCaches:
    """Of one member. `on_change` is called with the job id (and the key of its namespace and name, where the object
    tells) whenever something of ours changed there."""

    def __init__(self, hub_id: str, on_change: Callable[[str], None]) -> None:
        self._hub_id = hub_id
        self._on_change = on_change
        self._reservations: dict[str, dict[int, GangReservation]] = {}
        self._copies: dict[str, CopySeen] = {}
        self._pods: dict[str, dict[Key, tuple[bool, bool]]] = {}
        """job id -> pod -> (may run, was given a node)."""

    def clear(self) -> None:
        """The member is watched anew: until its caches are synced nothing is known."""
        self._reservations.clear()
        self._copies.clear()
        self._pods.clear()

    def ids(self) -> set[str]:
        """Job ids of ours that show in this member at all."""
        return {*self._reservations, *self._copies, *self._pods}

    def on_reservation(self, _: Change, old: GangReservation | None, new: GangReservation | None) -> None:
        for gone in (old,) if new is None or (old and old.metadata.uid != new.metadata.uid) else ():
            if gone is not None:
                known = self._reservations.get(gone.spec.job_id, {})
                known.pop(gone.spec.epoch, None)
                if not known:
                    self._reservations.pop(gone.spec.job_id, None)
        if new is not None and new.spec.hub_id == self._hub_id:
            self._reservations.setdefault(new.spec.job_id, {})[new.spec.epoch] = new
        self._told(old, new, lambda r: r.spec.job_id if r.spec.hub_id == self._hub_id else "")

    def on_copy(self, _: Change, old: CopySeen | None, new: CopySeen | None) -> None:
        if old is not None and (job_id := self._id(old.metadata)):
            self._copies.pop(job_id, None)
        if new is not None and (job_id := self._id(new.metadata)):
            self._copies[job_id] = new
        self._told(old, new, lambda c: self._id(c.metadata))

    def on_pod(self, _: Change, old: PodSeen | None, new: PodSeen | None) -> None:
        before = after = None
        if old is not None and (job_id := self._id(old.metadata)):
            pods = self._pods.get(job_id, {})
            before = pods.pop(old.metadata.key, None)
            if not pods:
                self._pods.pop(job_id, None)
        if new is not None and (job_id := self._id(new.metadata)):
            after = (new.may_run, new.bound)
            self._pods.setdefault(job_id, {})[new.metadata.key] = after
        if before != after:  # most pod events change nothing that anyone here asks about
            self._told(old, new, lambda p: self._id(p.metadata))

    def _told(self, old: object, new: object, job_id_of: Callable[..., str]) -> None:
        for job_id in {job_id_of(o) for o in (old, new) if o is not None}:
            if job_id:
                self._on_change(job_id)

    def _id(self, metadata: ObjectMeta) -> str:
        return metadata.annotation(JOB_ID) if metadata.annotation(HUB_ID) == self._hub_id else ""

    def copy(self, job_id: str) -> CopySeen | None:
        return self._copies.get(job_id)

    def reservations(self, job_id: str) -> Iterator[GangReservation]:
        return iter(self._reservations.get(job_id, {}).values())

    def has_traces(self, job_id: str) -> bool:
        return job_id in self._reservations or job_id in self._copies or job_id in self._pods

    def view(self, base: MemberView, job_id: str, epoch: int) -> MemberView:
        """`base` (connection and identity of the member) with what the caches show of this attempt."""
        reservation = self._reservations.get(job_id, {}).get(epoch)
        copy = self._copies.get(job_id)
        pods = self._pods.get(job_id, {})
        return msgspec.structs.replace(
            base,
            live=False,
            reservation=reservation_view(reservation) if reservation else None,
            copy=copy_view(copy.metadata, copy.status, self._hub_id) if copy else None,
            pods=len(pods),
            pods_running=sum(may_run for may_run, _ in pods.values()),
        )

    def stray(self, cluster: str, job_id: str, current_epoch: int | None) -> Stray | None:
        """What shows of this id beside `current_epoch` (None: everything)."""
        reservations: tuple[ReservationView, ...] = tuple(
            reservation_view(r) for e, r in self._reservations.get(job_id, {}).items() if e != current_epoch
        )
        copy: CopyView | None = None
        if (seen := self._copies.get(job_id)) is not None:
            found = copy_view(seen.metadata, seen.status, self._hub_id)
            copy = found if found.epoch != current_epoch else None
        pods = self._pods.get(job_id, {}) if current_epoch is None else {}
        if not (reservations or copy or pods):
            return None
        return Stray(
            cluster=cluster,
            reservations=reservations,
            copy=copy,
            pods=len(pods),
            pods_bound=sum(bound for _, bound in pods.values()),
        )
