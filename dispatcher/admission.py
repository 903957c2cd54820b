"""Which waiting job starts an attempt where: quota and room of the whole fleet in one ledger, decided by one loop.

The ledger follows the bindings: what a binding has recorded is charged and promised, and a decision under way counts as
recorded until its PUT is known to have failed (F3, K7). Synchronous throughout: nothing can come between looking and
charging.
"""

from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from dispatcher import attempts
from dispatcher.backoff import Backoff
from dispatcher.binding_store import BindingStore, Key
from dispatcher.claims import Claims, ClaimSettings
from dispatcher.fleet import Fleet
from dispatcher.intents import Reading
from dispatcher.options import Options
from dispatcher.placement import Choice, Member, Promise, Settings, choose
from dispatcher.preemptions import Preemptions, ReclaimSettings
from dispatcher.queueing import Pending, Waiting
from dispatcher.quota import Ledger, ask_for, charge_of
from dispatcher.readings import Readings
from dispatcher.reclaim import Admitted, beyond_limits
from dispatcher.steps import Record
from kube.api.clock import Clock
from kube.objects.binding import BindingSpec, ClusterReason, ResourceBinding
from kube.objects.quantity import QuantityError
from kube.objects.resources import Resources, add_into, dominant_share, parse_resources

HOLDS_ROOM = ("Reserving", "Scheduled", "Landed")
"""States whose room must be left to them until a report includes it."""


TIME_SECONDS = 5.0
"""How often a pass is made because time alone may have changed something: claims, and room that is kept."""

CLAIMS_AT_ONCE = 5
"""Jobs that are looked at for a claim in one pass."""


class Decision(msgspec.Struct, frozen=True):
    key: Key
    record: Record
    base: BindingSpec
    """What it was decided on."""
    kind: Literal["admit", "evict"] = "admit"


class Admission:
    def __init__(
        self,
        store: BindingStore,
        readings: Readings,
        fleet: Fleet,
        *,
        clock: Clock,
        options: Options,
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
        self._settings = Settings(report_max_age=options.heartbeat_seconds)
        self._options = options
        self.claims = Claims(
            ClaimSettings(
                after=options.claim_after_seconds, hold=options.claim_seconds, pause=options.claim_pause_seconds
            )
        )
        self.preemptions = Preemptions(
            ReclaimSettings(hold=options.reclaim_hold_seconds, rest=options.reclaim_rest_seconds)
        )
        self._on_waiting = on_waiting
        self._on_damaged = on_damaged
        self._promises: dict[str, Promise] = {}
        self._under_way: set[str] = set()
        self._evictions_under_way: set[str] = set()
        self._limits_changed = True
        """Use may be above the limits of the tree in force."""
        self._passed_at = 0.0
        self._again = False
        """Something that was decided could not be carried out: to be looked at again."""
        store.subscribe(self._binding_changed)

    # --- what waits

    def offer(self, binding: ResourceBinding, reading: Reading) -> None:
        """Nothing but quota and room stands in its way."""
        spec = binding.spec
        if spec.job_id in self._under_way:
            return
        self.due = True
        before = self.pending.get(spec.job_id)
        if before is not None and before.ask != reading.ask:
            self._unclaim(spec.job_id)
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
                hand_made=reading.queue,
                constraint=f"{reading.constraint}|{excluded}",
            )
        )

    def withdraw(self, spec: BindingSpec) -> None:
        """It does not wait for quota and room: it has an attempt, or something else stands in its way."""
        self.pending.discard(spec.job_id)
        if spec.attempt is None and spec.job_id not in self._under_way:
            self._unclaim(spec.job_id)

    def _unclaim(self, job_id: str) -> None:
        self.claims.settled(job_id, self._clock.monotonic())
        if self.preemptions.end(job_id, self.ledger):
            self.due = True
            self.pending.wake_all()

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
        self._limits_changed = True
        self.pending.wake_all()

    def time_passed(self) -> None:
        """To be called often. Claims come due, and what is kept for somebody is kept for a time only."""
        waiting = self._again or self.claims.waiting or len(self.preemptions)
        if waiting and self._clock.monotonic() - self._passed_at >= TIME_SECONDS:
            self.due = True

    def _binding_changed(self, key: Key, old: ResourceBinding | None, new: ResourceBinding | None) -> None:
        if old is not None and (new is None or new.spec.job_id != old.spec.job_id):
            self._release(old.spec.job_id)
            self._promise(old.spec.job_id, None)
            self.pending.discard(old.spec.job_id)
            self._unclaim(old.spec.job_id)
            for cluster in self._said.pop(old.spec.job_id, {}):
                self.exclude.forget((old.spec.job_id, cluster))
        if new is not None:
            self._follow(key, new)

    def _follow(self, key: Key, binding: ResourceBinding) -> None:
        spec = binding.spec
        if spec.job_id in self._under_way:
            return
        self._promise(spec.job_id, _promise_of(spec))
        attempt = spec.attempt
        if attempt is not None and attempt.state != "Reserving":
            self._unclaim(spec.job_id)
        elif attempt is not None and attempt.claim:
            self.claims.restore(spec.job_id, attempt.cluster, self._clock.monotonic())
        else:
            self.claims.end(spec.job_id, self._clock.monotonic())
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
            self.preemptions.released(job_id, self.ledger, self._clock.monotonic())
            self._serve_in_order()
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
        self._again = False
        now = self._passed_at = self._clock.monotonic()
        for job_id, _ in self.claims.expired(now):
            yield from self._evict(job_id, "ClaimExpired", "room did not come free while nodes were kept free for it")
        if self.preemptions.expire(self.ledger, now):
            self.pending.wake_all()
        self._serve_in_order()
        members: list[Member] = [member.placement() for member in self._fleet]
        while (waiting := self.pending.next(self.ledger)) is not None:
            decision = self._try(waiting, members)
            if decision is not None:
                yield decision
        if self._limits_changed and self._options.evict_over_max:
            for job_id, why in beyond_limits(self.ledger, self._admitted()).items():
                yield from self._evict(job_id, "Preempted", why)
        self._limits_changed = False
        if self._options.reclaim:
            yield from self._reclaim(members, now)
        yield from self._claim(members, now)

    def _try(self, waiting: Waiting, members: list[Member]) -> Decision | None:
        found = self._choose(waiting, members)
        if found is None:
            return None
        binding, choice = found
        if not choice.ranked:
            self.pending.no_room(waiting.binding_id, choice.short, choice.refused)
            if choice.short:
                self.claims.lacks_room(waiting.binding_id, self._clock.monotonic())
            self._on_waiting((binding.metadata.namespace, binding.spec.job.name))
            return None
        return self._admit(waiting, binding, choice.ranked[0].cluster, members)

    def _choose(
        self, waiting: Waiting, members: list[Member], *, judge_all: bool = False
    ) -> tuple[ResourceBinding, Choice] | None:
        """None: it does not wait any more."""
        binding = self._store.by_id(waiting.binding_id)
        if binding is None or binding.spec.attempt is not None:
            self.pending.discard(waiting.binding_id)
            return None
        spec = binding.spec
        reading = self._readings.get((binding.metadata.namespace, spec.job.name), spec.policy)
        if reading is None or reading.job is None or reading.policy is None:
            self.pending.discard(waiting.binding_id)
            return None
        choice = choose(
            reading.job, reading.policy, members, list(self._promises.values()), job_id=spec.job_id,
            excluded=self.excluded(spec), priority_classes=self._readings.priority_classes, settings=self._settings,
            judge_all=judge_all,
        )  # fmt: skip
        return binding, choice

    def _admit(
        self, waiting: Waiting, binding: ResourceBinding, cluster: str, members: list[Member], *, claim: bool = False
    ) -> Decision:
        spec = binding.spec
        uid = next(m.cluster_uid for m in members if m.name == cluster)
        charge = charge_of(waiting.ask) if waiting.ask else None
        record = attempts.reserving(
            spec, cluster, uid, charge, self._clock.now(), excluded=list(self.excluded(spec)), claim=claim
        )  # fmt: skip
        if waiting.ask is not None:
            self.preemptions.charged(spec.job_id, self.ledger)
            self.ledger.charge(spec.job_id, waiting.ask)
        self._promise(spec.job_id, _promise_of(record.spec))
        self._under_way.add(spec.job_id)
        self.pending.discard(waiting.binding_id)
        return Decision((binding.metadata.namespace, spec.job.name), record, spec)

    # --- taking turns

    def _reclaim(self, members: list[Member], now: float) -> Iterator[Decision]:
        """Whole jobs of borrowers make room for jobs whose queues are below their min."""
        for group in list(self.pending.short_of_quota()):
            for waiting in group:
                if waiting.binding_id in self.preemptions:
                    continue
                found = self.preemptions.choose(waiting, self.ledger, self._admitted, now)
                if not found.victims:
                    break  # nor for its likes behind it
                chosen = self._choose(waiting, members, judge_all=True)
                if chosen is None or not (chosen[1].ranked or chosen[1].short):
                    break  # no member would take it however much came free
                self.preemptions.begin(waiting, found.victims, self.ledger, now)
                for victim in found.victims:
                    yield from self._evict(victim, "Preempted", found.reason)

    def _serve_in_order(self) -> None:
        for heir in self.preemptions.pass_on(self.pending.alike, self.ledger):
            self.pending.wake(heir)

    def _evict(self, job_id: str, reason: str, message: str) -> Iterator[Decision]:
        binding = self._store.by_id(job_id)
        record = attempts.evict(binding.spec, reason, message) if binding is not None else None
        if binding is None or record is None or job_id in self._evictions_under_way:
            return
        self._evictions_under_way.add(job_id)
        key = (binding.metadata.namespace, binding.spec.job.name)
        yield Decision(key, record, binding.spec, kind="evict")

    def _admitted(self) -> list[Admitted]:
        """Charged jobs that could be taken back, and those that are on their way out already."""
        found = []
        for job_id in self.ledger.entries():
            binding = self._store.by_id(job_id)
            attempt = binding.spec.attempt if binding else None
            if binding is None or attempt is None or attempt.state == "Finished":
                continue
            going = attempt.state == "Evicting" or job_id in self._evictions_under_way
            found.append(
                Admitted(
                    binding_id=job_id, priority=binding.spec.priority, admitted_at=attempt.started_at, in_flight=going
                )
            )
        return found

    def _claim(self, members: list[Member], now: float) -> Iterator[Decision]:
        """The jobs that have waited longest for room alone may have nodes kept free for them."""
        long_ago = [
            (waiting, waited)
            for waiting in self.pending.without_room()
            if (waited := self.claims.lacks_room(waiting.binding_id, now)) >= self._options.claim_after_seconds
        ]
        for waiting, waited in long_ago[:CLAIMS_AT_ONCE]:
            if self._quota_blocks(waiting) or (found := self._choose(waiting, members, judge_all=True)) is None:
                continue
            asked = _total(waiting)
            able = [m for m in members if m.name in found[1].short and self._could_hold(m.name, asked)]
            for member in sorted(able, key=lambda member: (dominant_share(asked, member.free), member.name)):
                if not found[1].ranked and self.claims.grant(waiting.binding_id, member.name, waited, now):
                    yield self._admit(waiting, found[0], member.name, members, claim=True)
                    break

    def _quota_blocks(self, waiting: Waiting) -> bool:
        return waiting.ask is not None and self.ledger.blocked(waiting.ask, waiting.binding_id) is not None

    def _could_hold(self, cluster: str, asked: Resources) -> bool:
        """All its nodes together, empty."""
        member = self._fleet.get(cluster)
        total = member.total() if member else {}
        return all(units <= total.get(resource, 0) for resource, units in asked.items())

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

    def recorded(self, key: Key, decision: Decision) -> None:
        """The store shows now what became of the decision: follow it again."""
        job_id = decision.base.job_id
        binding = self._store.get(key)
        if decision.kind == "evict":
            self._evictions_under_way.discard(job_id)
            if binding is not None and binding.spec.job_id == job_id:
                attempt = binding.spec.attempt
                if attempt is not None and attempt.state != "Evicting":
                    self._again |= self.preemptions.spared(job_id, self.ledger)
                self._follow(key, binding)
            return
        self._under_way.discard(job_id)
        if binding is None or binding.spec.job_id != job_id:
            self._release(job_id)
            self._promise(job_id, None)
            self._unclaim(job_id)
        else:
            self._follow(key, binding)


def _total(waiting: Waiting) -> Resources:
    """What the job's minimum asks for."""
    total: Resources = {}
    for component in waiting.components:
        add_into(total, parse_resources(component.request), component.min_replicas)
    return total


def _promise_of(spec: BindingSpec) -> Promise | None:
    attempt = spec.attempt
    if attempt is None or attempt.state not in HOLDS_ROOM or attempt.claim:
        return None  # nodes that a claim keeps free are left out of the member's report
    return Promise(cluster=attempt.cluster, job_id=spec.job_id, epoch=attempt.epoch, components=tuple(spec.components))
