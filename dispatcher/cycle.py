"""One term of leadership: all parts put together around one loop over events and one ledger.

Built anew at each take-over and thrown away at its end: everything durable is in API servers, so a fresh start is the
only start there is. Nothing is decided before the hub's caches are synced and every member has been read or has had
`settle_seconds` to answer.
"""

import asyncio
import logging
from functools import partial

from dispatcher.actions import Actions, Learnt
from dispatcher.admission import Admission
from dispatcher.attempts import Limits
from dispatcher.backoff import Backoff
from dispatcher.binding_status import Waiting
from dispatcher.binding_store import BindingStore, Key
from dispatcher.fleet import Fleet
from dispatcher.hub_watches import HubWatches, Undecoded
from dispatcher.identity import HubIdentity
from dispatcher.intents import Reading
from dispatcher.member_status import MemberStatusWriter
from dispatcher.members import Connect, Member
from dispatcher.metrics import NO_QUEUE, Metrics
from dispatcher.mirror import Mirror
from dispatcher.object_events import ObjectEvents
from dispatcher.options import Options
from dispatcher.orphan_sweep import OrphanSweep
from dispatcher.queue_objects import QueueObjects
from dispatcher.readings import Readings
from dispatcher.restore_guard import RestoreGuard
from dispatcher.step_metrics import StepMetrics
from dispatcher.stepper import Stepper
from dispatcher.steps import AwaitAdmission, MemberStep, Record, Step, Wait
from dispatcher.tree_status import tree_status
from kube.api.api import Api
from kube.api.clock import Clock
from kube.api.events import EventRecorder
from kube.api.reflector import Change
from kube.objects.binding import ResourceBinding
from kube.objects.member_cluster import MemberCluster

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often members are judged and their gauges set."""
QUEUE_GAUGES_SECONDS = 5.0
"""How often the queues' gauges are set: that counts every waiting job."""
ADMIT_SECONDS = 0.05
"""At least between two passes of admission: events of one moment are answered together."""
ITEMS_SECONDS = 15.0
"""How often Queue.status.queueItemDetails is refreshed (Kube Queue's own interval)."""
REASONS_AT_ONCE = 100
"""Waiting jobs whose reasons are looked at again per second."""
ADMIT_AT_ONCE = 50
"""Decisions after which the loop gets a turn."""


class Cycle:
    """`run()` is the term; it ends by cancellation."""

    def __init__(
        self,
        hub: Api,
        connect: Connect,
        clock: Clock,
        options: Options,
        identity: HubIdentity,
        metrics: Metrics,
        *,
        instance: str,
    ) -> None:
        self._clock = clock
        self._options = options
        self._identity = identity
        self._metrics = metrics
        self._connect = connect
        self._open = False
        """Whether anything may be decided yet."""
        self._admitting = False
        self._waits: dict[Key, Wait] = {}
        self._offered: set[Key] = set()
        """Waiting since before the next pass: shown after it, with the reasons that it finds."""
        self.watches = HubWatches(hub, clock)
        self.store = BindingStore()
        self.fleet = Fleet(self.watches, self._make_member, self._member_state)
        self.readings = Readings(self.watches, on_jobs=self._jobs_changed, on_tree=self._tree_changed)
        self.events = EventRecorder(hub, clock, component="muster-dispatcher", instance=instance)
        self.admission = Admission(
            self.store,
            self.readings,
            self.fleet,
            clock=clock,
            options=options,
            exclude=Backoff(options.exclude_seconds, options.exclude_max_seconds),
            on_waiting=self._show,
            on_damaged=lambda key, text: log.error("%s/%s: %s", *key, text),
        )
        actions = Actions(
            hub, self.watches, self.store, self.fleet, identity=identity, clock=clock, options=options
        )  # fmt: skip
        self.stepper = Stepper(
            actions,
            self.store,
            self.readings,
            self.fleet,
            clock=clock,
            limits=Limits(answer_seconds=options.answer_seconds, silence_seconds=options.silence_seconds),
            retry=Backoff(options.retry_seconds, options.retry_max_seconds),
            on_step=self._stepped,
            on_settled=self._settled,
            on_trouble=self._trouble,
            prepare=self.admission.adopted,
            between=self._admit_soon,
        )
        self._step_metrics = StepMetrics(metrics, clock)
        self.mirror = Mirror(
            hub,
            self.watches,
            self.store,
            self.readings,
            self.fleet,
            self.events,
            clock=clock,
            hub_id=identity.hub_id,
            writers=options.status_writers,
            retry=Backoff(options.retry_seconds, options.retry_max_seconds),
            call_seconds=options.hub_call_seconds,
            situation=self._situation,
            on_written=metrics.sync_lag_seconds.observe,
        )
        self.queues = QueueObjects(
            hub,
            self.watches,
            self.readings,
            clock,
            every_seconds=ITEMS_SECONDS,
            call_seconds=options.hub_call_seconds,
            positions=lambda path: self.admission.pending.positions(path, 100),
            configure=self.admission.pending.configure,
            tree_status=lambda: tree_status(self.admission.ledger, self.admission.pending.asks()),
        )
        self._object_events = ObjectEvents(hub, self.watches, self.readings, self.events, clock)
        self._member_status = MemberStatusWriter(
            hub, self.fleet, clock, every_seconds=LOOK_SECONDS, call_seconds=options.hub_call_seconds
        )
        self._orphans = OrphanSweep(
            hub,
            self.store,
            self.fleet,
            clock,
            every_seconds=options.orphan_seconds,
            call_seconds=options.member_call_seconds,
            on_lost=self._lost,
        )
        self._round: list[Key] = []
        self._restore = RestoreGuard(
            hub, self.fleet, identity, call_seconds=options.hub_call_seconds, on_raised=self._incarnation_raised
        )
        self._lost_jobs: dict[str, set[str]] = {}
        self.watches.bindings.subscribe(self.store.on_watch)
        self.watches.jobs.subscribe(self._job_changed)
        self.watches.queue_units.subscribe(self._unit_changed)
        self.store.subscribe(self._binding_changed)

    @property
    def not_ready(self) -> str:
        """Empty once decisions are made."""
        if unsynced := self.watches.unsynced():
            return f"not read yet: {', '.join(unsynced)}"
        return "" if self._open else "members are being read"

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.watches.run(), name="hub watches")
            tasks.create_task(self.events.run(), name="events")
            tasks.create_task(self.fleet.run(), name="members")
            await self.watches.synced()
            await self._settle_members()
            log.info(
                "leading as incarnation %d of hub %s: %d jobs, %d bindings, %d members",
                self._identity.incarnation, self._identity.hub_id, len(self.watches.jobs), len(self.store),
                len(self.fleet),
            )  # fmt: skip
            self.readings.recover_tree()
            self._open = True
            self._touch_all()
            self.queues.touch()
            tasks.create_task(self.stepper.run(), name="steps")
            tasks.create_task(self.mirror.run(), name="mirror")
            tasks.create_task(self.queues.run(), name="queues")
            tasks.create_task(self._object_events.run(), name="object events")
            tasks.create_task(self._member_status.run(), name="member status")
            tasks.create_task(self._orphans.run(), name="orphans")
            tasks.create_task(self._look(), name="gauges")
            self._tasks = tasks

    async def _settle_members(self) -> None:
        deadline = self._clock.monotonic() + self._options.settle_seconds
        while self._clock.monotonic() < deadline:
            connections = [m.verdict().connection for m in self.fleet if not m.health.refused]
            if all(connection != "Unreachable" for connection in connections):
                return
            await self._clock.sleep(0.05)

    def _make_member(self, cluster: MemberCluster) -> Member:
        return Member(
            cluster,
            connect=self._connect,
            clock=self._clock,
            options=self._options,
            identity=self._identity,
            on_change=self._member_object_changed,
            on_state=self._member_state,
            on_report=self._member_reported,
        )

    def _incarnation_raised(self, identity: HubIdentity) -> None:
        self._identity = identity
        for member in self.fleet:
            member.identify(identity)
        self.admission.due = True
        self.stepper.wake()

    # --- events

    def _touch_all(self) -> None:
        for job in self.watches.jobs:
            self.stepper.touch(job.metadata.key)
        for binding in self.store:
            self.stepper.touch((binding.metadata.namespace, binding.spec.job.name))

    def _job_changed(self, _: Change, old: Undecoded | None, new: Undecoded | None) -> None:
        job = new or old
        if not self._open or job is None:
            return
        self.stepper.touch(job.metadata.key)
        if old is None or new is None or old.metadata.labels != new.metadata.labels:
            self._object_events.touch(job.metadata.namespace)  # a policy may select something now, or nothing any more

    def _unit_changed(self, _: Change, __: Undecoded | None, new: Undecoded | None) -> None:
        """Somebody answered an admission check: all else in it is ours."""
        owner = next(iter(new.metadata.owner_references), None) if new else None
        if new is None or owner is None or not self._open or b"admissionChecks" not in bytes(new.status):
            return
        self.stepper.touch((new.metadata.namespace, owner.name))

    def _binding_changed(self, key: Key, _: ResourceBinding | None, new: ResourceBinding | None) -> None:
        if new is None:
            self._waits.pop(key, None)
            self.mirror.touch(key)
        if self._open:
            self.stepper.touch(key)

    def _jobs_changed(self, namespace: str) -> None:
        """Policies, tree, namespace or PriorityClasses: every job there may read differently."""
        if not self._open:
            return
        self._object_events.touch(namespace)
        for job in self.watches.jobs:
            if not namespace or job.metadata.namespace == namespace:
                self.stepper.touch(job.metadata.key)

    def _tree_changed(self) -> None:
        self.admission.tree_changed()
        self.queues.touch()
        self._object_events.touch("")
        self.stepper.wake()

    def _member_object_changed(self, job_id: str) -> None:
        key = self.store.key_of(job_id)
        if key is not None and self._open:
            self.stepper.touch(key)

    def _member_state(self, name: str) -> None:
        """Connection, readiness, labels, taints or membership."""
        self.admission.member_changed(name)
        if not self._open:
            return
        for binding in self.store:
            attempt = binding.spec.attempt
            if attempt is not None and attempt.cluster == name:
                self.stepper.touch((binding.metadata.namespace, binding.spec.job.name))
        self.stepper.wake()

    def _member_reported(self, name: str) -> None:
        self.admission.room_reported(name)
        self.stepper.wake()

    # --- steps

    def _settled(self, key: Key, step: Step, reading: Reading | None) -> None:
        binding = self.store.get(key)
        if isinstance(step, AwaitAdmission) and binding is not None and reading is not None:
            self._waits.pop(key, None)
            self.admission.offer(binding, reading)
            self._offered.add(key)
            pause = self.admission.pause_left(binding.spec)
            if pause:
                self.stepper.alarm(key, pause)
            self.stepper.wake()
        else:
            if binding is not None:
                self.admission.withdraw(binding.spec)
            if isinstance(step, Wait):
                self._waits[key] = step
        if binding is None:
            self._waits.pop(key, None)
        elif key not in self._offered:
            self._show(key)

    def _stepped(self, key: Key, step: Step, learnt: Learnt) -> None:
        binding = self.store.get(key)
        self._step_metrics.stepped(step, learnt, binding)
        if isinstance(step, Record) and not learnt.stale:
            log.info("%s/%s: %s %s", *key, step.change, step.why)
            attempt = step.spec.attempt
            if step.change == "Evicting" and attempt is not None and attempt.then != "Delete":
                self._object_events.warn_job(key, "Evicted", f"taken back from {attempt.cluster}: {attempt.message}")
            if step.exclude:
                self.admission.refused(step.spec.job_id, step.exclude, step.why.removeprefix(f"{step.exclude}: "))
        if learnt.refusal:
            log.warning("%s/%s: refused: %s", *key, learnt.refusal)
        for warning in learnt.warnings:
            self._object_events.warn_job(key, "DispatchWarning", warning)

    def _trouble(self, key: Key, step: Step, message: str) -> None:
        where = f" in {step.cluster}" if isinstance(step, MemberStep) else ""
        log.warning("%s/%s: %s%s failed: %s", *key, type(step).__name__, where, message)
        self._step_metrics.failed(step)

    def _situation(self, key: Key) -> Waiting:
        wait = self._waits.get(key)
        binding = self.store.get(key)
        if binding is None or binding.spec.attempt is not None:
            return Waiting(wait=wait)
        clusters, quota = self.admission.reason(binding.spec.job_id)
        tried = bool(clusters or quota or not len(self.fleet))
        return Waiting(wait=wait, clusters=clusters, quota=quota, tried=tried)

    def _show(self, key: Key) -> None:
        self.mirror.touch(key)

    # --- admission

    def _admit_soon(self) -> None:
        if not self._admitting and self._open and self.admission.due and not self._restore.shut:
            self._admitting = True
            self._tasks.create_task(self._admit(), name="admission")

    async def _admit(self) -> None:
        """One pass. Never two at once."""
        try:
            began = self._clock.monotonic()
            decided = 0
            for decision in self.admission.decide():
                done = partial(self.admission.recorded, decision.key, decision)
                self.stepper.start(decision.key, decision.record, decision.base, done)
                decided += 1
                if decided % ADMIT_AT_ONCE == 0:
                    await asyncio.sleep(0)
            self._metrics.admission_seconds.observe(self._clock.monotonic() - began)
            self._metrics.admission_attempts.labels("admitted" if decided else "no_room").inc(decided or 1)
            await self._clock.sleep(ADMIT_SECONDS)
        finally:
            self._admitting = False
        for key in self._offered:
            self._show(key)
        self._offered.clear()
        self.stepper.wake()

    # --- gauges

    def _lost(self, cluster: str, job_id: str) -> None:
        known = self._lost_jobs.setdefault(cluster, set())
        if job_id not in known:
            known.add(job_id)
            log.error(
                "%s: job %s of ours runs there, and the hub has no record of it (lost data?); it is left alone: remove "
                "its reservation and its copy by hand, or restore the hub", cluster, job_id,
            )  # fmt: skip
        self._metrics.lost_jobs.labels(cluster).set(len(known))

    async def _look(self) -> None:
        queues_at = -QUEUE_GAUGES_SECONDS
        while True:
            verdicts = {member.name: member.verdict() for member in self.fleet}
            self._metrics.show_members({name: (v.ready, v.report_age) for name, v in verdicts.items()})
            if self._clock.monotonic() - queues_at >= QUEUE_GAUGES_SECONDS:
                queues_at = self._clock.monotonic()
                self._show_queues()
            self._refresh_reasons()
            await self._restore.look()
            self.admission.time_passed()
            self.stepper.wake()
            await self._clock.sleep(LOOK_SECONDS)

    def _refresh_reasons(self) -> None:
        """Jobs of a class are judged by its first; the others' reasons follow here, some at a time, so that a queue of
        10,000 does not turn each capacity report into 10,000 writes."""
        if not self._round:
            self._round = [
                (b.metadata.namespace, b.spec.job.name)
                for b in self.store
                if b.spec.attempt is None and b.spec.result is None
            ]
        for key in self._round[-REASONS_AT_ONCE:]:
            self._show(key)
        del self._round[-REASONS_AT_ONCE:]

    def _show_queues(self) -> None:
        tree, ledger = self.readings.tree, self.admission.ledger
        nodes = [
            (node.full_name, "/".join(path[:-1]), node.min, node.max, ledger.used(path))
            for path, node in tree.nodes.items()
        ]
        pending: dict[tuple[str, str], int] = {}
        for binding in self.store:
            spec = binding.spec
            if spec.attempt is None and spec.result is None and not spec.deleting:
                key = (binding.metadata.namespace, spec.job.name)
                labels = (spec.quota or NO_QUEUE, "held" if key in self._waits else "waiting")
                pending[labels] = pending.get(labels, 0) + 1
        self._metrics.show_queues(nodes, pending)
