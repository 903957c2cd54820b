"""Which waiting job starts an attempt where: quota and room of the whole fleet in one ledger, decided by one loop.

The ledger follows the bindings: what a binding has recorded is charged and promised, and a decision under way counts as
recorded until its PUT is known to have failed (F3, K7). Synchronous throughout: nothing can come between looking and
charging.
"""

from collections.abc import Callable, Iterator

import msgspec

from dispatcher import attempts
from dispatcher.backoff import Backoff
from dispatcher.binding_store import BindingStore, Key
from dispatcher.fleet import Fleet
from dispatcher.intents import Reading
from dispatcher.placement import Member, Promise, Settings, choose
from dispatcher.queueing import Pending, Waiting
from dispatcher.quota import Ledger, ask_for, charge_of
from dispatcher.readings import Readings
from dispatcher.steps import Record
from kube.api.clock import Clock
from kube.objects.binding import BindingSpec, ClusterReason, ResourceBinding
from kube.objects.quantity import QuantityError

HOLDS_ROOM = ("Reserving", "Scheduled", "Landed")
"""States whose room must be left to them until a report includes it."""


class Decision(msgspec.Struct, frozen=True):
    key: Key
    record: Record
    base: BindingSpec
    """What it was decided on."""


class Admission:
    def __init__(
        self,
        store: BindingStore,
        readings: Readings,
        fleet: Fleet,
        *,
        clock: Clock,
        report_max_age: float,
        exclude: Backoff[tuple[str, str]],
        on_waiting: Callable[[Key], None],
        on_damaged: Callable[[Key, str], None],
    ) -> None:
        """exclude: by (job id, cluster). on_waiting: why the job waits may have changed."""
        self.pending = Pending()
        self.ledger = Ledger(readings.tree)
        self.exclude = exclude
        self.due = False
        """Whether anything has happened since the last pass that could help a waiting job."""
        self._said: dict[str, dict[str, str]] = {}
        """job id -> cluster -> why it refused the job last."""
        self._store = store
        self._readings = readings
        self._fleet = fleet
        self._clock = clock
        self._settings = Settings(report_max_age=report_max_age)
        self._on_waiting = on_waiting
        self._on_damaged = on_damaged
        self._promises: dict[str, Promise] = {}
        self._under_way: set[str] = set()
        store.subscribe(self._binding_changed)

    # --- what waits

    def offer(self, binding: ResourceBinding, reading: Reading) -> None:
        """Nothing but quota and room stands in its way."""
        spec = binding.spec
        if spec.job_id in self._under_way:
            return
        self.due = True
        excluded = ",".join(sorted(self.excluded(spec)))
        self.pending.put(
            Waiting(
                binding_id=spec.job_id,
                namespace=binding.metadata.namespace,
                name=spec.job.name,
                ask=reading.ask,
                components=tuple(spec.components),
                min_member=spec.min_member,
                priority=spec.priority,
                queued_at=spec.queued_at,
                constraint=f"{reading.constraint}|{excluded}",
            )
        )

    def withdraw(self, job_id: str) -> None:
        self.pending.discard(job_id)

    def refused(self, job_id: str, cluster: str, message: str) -> float:
        """A member refused or failed the job. Returns the seconds for which it is not asked again."""
        self._said.setdefault(job_id, {})[cluster] = message
        return self.exclude.failed((job_id, cluster), self._clock.monotonic())

    def excluded(self, spec: BindingSpec) -> dict[str, str]:
        """Members not to be asked now, with what they said. A pause that a former process began starts anew here."""
        now = self._clock.monotonic()
        said = self._said.setdefault(spec.job_id, {}) if spec.excluded else {}
        for cluster in spec.excluded:
            if cluster not in said:
                self.refused(spec.job_id, cluster, "")
        return {c: said[c] for c in spec.excluded if self.exclude.left((spec.job_id, c), now) > 0}

    def pause_left(self, spec: BindingSpec) -> float | None:
        """Seconds until the first excluded member may be asked again; None: none is excluded."""
        now = self._clock.monotonic()
        left = [self.exclude.left((spec.job_id, cluster), now) for cluster in self.excluded(spec)]
        return min(left, default=None)

    def reason(self, job_id: str) -> tuple[tuple[ClusterReason, ...], str]:
        return self.pending.reason(job_id)

    # --- what changed

    def room_reported(self, cluster: str) -> None:
        """Its capacity report changed."""
        member = self._fleet.get(cluster)
        if member is not None:
            self.due = True
            self.pending.room_reported(cluster, member.capacity.shapes)

    def member_changed(self, cluster: str) -> None:
        """Readiness, labels, taints or membership changed."""
        self.due = True
        if self._fleet.get(cluster) is None:
            self.pending.member_gone(cluster)
        self.pending.member_changed(cluster)

    def tree_changed(self) -> None:
        self.due = True
        self.ledger.retree(self._readings.tree)
        self.pending.wake_all()

    def _binding_changed(self, key: Key, old: ResourceBinding | None, new: ResourceBinding | None) -> None:
        if old is not None and (new is None or new.spec.job_id != old.spec.job_id):
            self._release(old.spec.job_id)
            self._promise(old.spec.job_id, None)
            self.pending.discard(old.spec.job_id)
            for cluster in self._said.pop(old.spec.job_id, {}):
                self.exclude.forget((old.spec.job_id, cluster))
        if new is not None:
            self._follow(key, new)

    def _follow(self, key: Key, binding: ResourceBinding) -> None:
        spec = binding.spec
        if spec.job_id in self._under_way:
            return
        self._promise(spec.job_id, _promise_of(spec))
        if spec.charge is None:
            self._release(spec.job_id)
        elif spec.job_id not in self.ledger.entries():
            try:
                self.ledger.charge_recorded(spec.job_id, spec.charge)
            except QuantityError as error:
                self._on_damaged(key, f"spec.charge cannot be read: {error}")

    def _release(self, job_id: str) -> None:
        entry = self.ledger.release(job_id)
        if entry is not None:
            self.due = True
            self.pending.quota_freed(self.ledger, entry.home)

    def _promise(self, job_id: str, promise: Promise | None) -> None:
        before = self._promises.pop(job_id, None)
        if promise is not None:
            self._promises[job_id] = promise
        if before is not None and (promise is None or promise.cluster != before.cluster):
            self.due = True
            self.pending.room_returned(before.cluster)

    # --- deciding

    def decide(self) -> Iterator[Decision]:
        """Decisions one by one; each counts in the ledger before the next is made. The caller records them, and tells
        `recorded` when it is known how that went."""
        self.due = False
        members: list[Member] = [member.placement() for member in self._fleet]
        while (waiting := self.pending.next(self.ledger)) is not None:
            decision = self._try(waiting, members)
            if decision is not None:
                yield decision

    def _try(self, waiting: Waiting, members: list[Member]) -> Decision | None:
        binding = self._store.by_id(waiting.binding_id)
        if binding is None or binding.spec.attempt is not None:
            self.pending.discard(waiting.binding_id)
            return None
        spec = binding.spec
        key = (binding.metadata.namespace, spec.job.name)
        reading = self._readings.get(key, spec.policy)
        if reading is None or reading.job is None or reading.policy is None:
            self.pending.discard(waiting.binding_id)
            return None
        excluded = self.excluded(spec)
        choice = choose(
            reading.job, reading.policy, members, list(self._promises.values()), job_id=spec.job_id,
            excluded=excluded, priority_classes=self._readings.priority_classes, settings=self._settings,
        )  # fmt: skip
        if not choice.ranked:
            self.pending.no_room(waiting.binding_id, choice.short, choice.refused)
            self._on_waiting(key)
            return None
        best = choice.ranked[0]
        uid = next(m.cluster_uid for m in members if m.name == best.cluster)
        charge = charge_of(waiting.ask) if waiting.ask else None
        record = attempts.reserving(
            spec, best.cluster, uid, charge, self._clock.now(), excluded=list(excluded)
        )  # fmt: skip
        if waiting.ask is not None:
            self.ledger.charge(spec.job_id, waiting.ask)
        self._promise(spec.job_id, _promise_of(record.spec))
        self._under_way.add(spec.job_id)
        self.pending.discard(waiting.binding_id)
        return Decision(key, record, spec)

    def adopted(self, record: Record, reading: Reading | None) -> Record:
        """A copy that runs is charged, whatever the limits say now."""
        spec = record.spec
        if record.change != "Adopted" or not spec.queued or spec.charge is not None or reading is None:
            return record
        ask = reading.ask
        if ask is None:
            path = tuple(spec.quota.split("/")) if spec.quota else ()
            if not path or reading.job is None:
                return record
            ask = ask_for(path, reading.job.total_request())
        return msgspec.structs.replace(record, spec=msgspec.structs.replace(spec, charge=charge_of(ask)))

    def recorded(self, key: Key, job_id: str) -> None:
        """The store shows now what became of the decision: follow it again."""
        self._under_way.discard(job_id)
        binding = self._store.get(key)
        if binding is None or binding.spec.job_id != job_id:
            self._release(job_id)
            self._promise(job_id, None)
        else:
            self._follow(key, binding)


def _promise_of(spec: BindingSpec) -> Promise | None:
    attempt = spec.attempt
    if attempt is None or attempt.state not in HOLDS_ROOM:
        return None
    return Promise(cluster=attempt.cluster, job_id=spec.job_id, epoch=attempt.epoch, components=tuple(spec.components))
