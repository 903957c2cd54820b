"""Drives each job through its steps: look, decide, act, look again. One task per job that has something to do, so a
member that hangs holds up only its own jobs; a job that waits costs nothing but its place in memory.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from dispatcher import attempts
from dispatcher.actions import Actions, Learnt
from dispatcher.attempts import Limits
from dispatcher.backoff import Backoff
from dispatcher.binding_store import BindingStore, Key
from dispatcher.fleet import Fleet
from dispatcher.intents import Reading
from dispatcher.leadership import NotLeading
from dispatcher.observations import CopyView, MemberView, Stray, View
from dispatcher.readings import Readings
from dispatcher.steps import AwaitAdmission, Dispatch, MemberStep, ReadBinding, Record, Step, Wait
from kube.api.clock import Clock
from kube.api.errors import ApiError
from kube.objects.binding import BindingSpec

log = logging.getLogger(__name__)

POSTED_SECONDS = 5.0
"""How long a copy counts as there by our own POST, until the watch shows it."""
STEPS_AT_ONCE = 40
"""More than any job needs from queued to landed or gone: who needs more runs in a circle."""
BUG = "bug: %s/%s cannot be handled; the other jobs go on"
"""One job must not hold up all others, as an end of the process would, again and again."""
FALLBACK_SECONDS = 5.0
"""A step that a watch should follow is looked at again after this."""


class _Posted(msgspec.Struct):
    epoch: int
    copy: CopyView
    until: float


class Stepper:
    """`run()` belongs in a TaskGroup. Everything else is for the loop's own thread.

    on_step(key, step, learnt): a step was carried out. on_settled(key, step, reading): it waits, or for admission.
    between(): called when there is nothing left to look at: the time to admit.
    """

    def __init__(
        self,
        actions: Actions,
        store: BindingStore,
        readings: Readings,
        fleet: Fleet,
        *,
        clock: Clock,
        limits: Limits,
        retry: Backoff[Key],
        on_step: Callable[[Key, Step, Learnt], None],
        on_settled: Callable[[Key, Step, Reading | None], None],
        on_trouble: Callable[[Key, Step, str], None],
        prepare: Callable[[Record, Reading | None], Record],
        between: Callable[[], None],
    ) -> None:
        self._actions = actions
        self._store = store
        self._readings = readings
        self._fleet = fleet
        self._clock = clock
        self._limits = limits
        self._retry = retry
        self._on_step = on_step
        self._on_settled = on_settled
        self._on_trouble = on_trouble
        self._prepare = prepare
        self._between = between
        self._dirty: dict[Key, None] = {}
        self._wake = asyncio.Event()
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._again: set[Key] = set()
        """Changed while it was worked on: to be looked at when that ends."""
        self._alarms: dict[Key, tuple[float, asyncio.Task[None]]] = {}
        self._since: dict[Key, tuple[int, str, float]] = {}
        self._posted: dict[Key, _Posted] = {}
        self._doubtful: set[Key] = set()
        """A write of the binding was sent and not answered: read it before deciding anything."""
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def busy(self) -> int:
        return len(self._running) + len(self._dirty)

    def is_running(self, key: Key) -> bool:
        return key in self._running

    def touch(self, key: Key) -> None:
        """Something about this job changed."""
        self._dirty[key] = None
        self._wake.set()

    def wake(self) -> None:
        """Nothing about a job, but something that admission depends on changed."""
        self._wake.set()

    def start(self, key: Key, record: Record, base: BindingSpec, done: Callable[[], None]) -> None:
        """Carry out a decision of the admission, made on `base`. `done` is called when it is known how it went."""
        if key in self._running:
            done()  # it changed while admission looked: what comes of that is looked at first
            self.touch(key)
            return
        self._spawn(key, record, base, done)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            while True:
                await self._wake.wait()
                self._wake.clear()
                looked = 0
                while self._dirty:
                    key = next(iter(self._dirty))
                    del self._dirty[key]
                    if key in self._running:
                        self._again.add(key)
                        continue
                    self._examine(key)
                    looked += 1
                    if looked % 100 == 0:
                        await asyncio.sleep(0)
                self._between()

    def _examine(self, key: Key) -> None:
        if self._retry.left(key, self._clock.monotonic()) > 0:
            return  # an alarm is set
        try:
            self._look(key)
        except Exception:
            log.exception(BUG, *key)
            self._pause(key)

    def _look(self, key: Key) -> None:
        binding = self._store.get(key)
        base = binding.spec if binding else None
        if key in self._doubtful:
            self._spawn(key, ReadBinding(), base)
            return
        step, reading = self._decide(key, Learnt(), None, frozenset())
        if isinstance(step, Wait | AwaitAdmission):
            self._settle(key, step, reading)
        else:
            self._spawn(key, step, base)

    def _pause(self, key: Key) -> None:
        self.alarm(key, self._retry.failed(key, self._clock.monotonic()))

    def _spawn(self, key: Key, step: Step, base: BindingSpec | None, done: Callable[[], None] | None = None) -> None:
        assert self._tasks is not None
        self._running[key] = self._tasks.create_task(self._drive(key, step, base, done))

    async def _drive(self, key: Key, step: Step, base: BindingSpec | None, done: Callable[[], None] | None) -> None:
        gone: set[str] = set()
        member: MemberView | None = None
        """As this task has read or written it; until it ends, better than what caches show."""
        try:
            for _ in range(STEPS_AT_ONCE):
                learnt = await self._perform(key, step, base, member)
                if done is not None:
                    done()
                    done = None
                gone.add(learnt.gone_uid)
                if learnt.pause:
                    self.alarm(key, FALLBACK_SECONDS)
                    break
                member = self._now_known(step, learnt, member)
                base = self._spec(key)
                if learnt.refusal and (rejected := _rejection(base, learnt.refusal)) is not None:
                    step = rejected
                    continue
                step, reading = self._decide(key, learnt, member, frozenset(gone))
                if isinstance(step, Wait | AwaitAdmission):
                    self._settle(key, step, reading)
                    break
            else:
                log.warning("%s/%s: %d steps at once, and still %s; pausing", *key, STEPS_AT_ONCE, step)
                self.alarm(key, FALLBACK_SECONDS)
            self._retry.forget(key)
        except NotLeading:
            log.info("%s/%s: not leading any more; left to the next leader", *key)
        except ApiError as error:
            if error.uncertain and isinstance(step, Record):
                self._doubtful.add(key)
            self._pause(key)
            self._on_trouble(key, step, str(error))
        except Exception:
            log.exception(BUG, *key)
            if isinstance(step, Record):
                self._doubtful.add(key)
            self._pause(key)
        finally:
            self._running.pop(key, None)
            if done is not None:
                done()
            if key in self._again:
                self._again.discard(key)
                self.touch(key)

    def _spec(self, key: Key) -> BindingSpec | None:
        binding = self._store.get(key)
        return binding.spec if binding else None

    async def _perform(self, key: Key, step: Step, base: BindingSpec | None, member: MemberView | None) -> Learnt:
        reading = self._readings.get(key, base.policy if base else "")
        if isinstance(step, Record):
            step = self._prepare(step, reading)
        learnt = await self._actions.perform(key, step, base, reading, member)
        self._doubtful.discard(key)
        self._on_step(key, step, learnt)
        if isinstance(step, Dispatch) and learnt.member and learnt.member.copy:
            self._posted[key] = _Posted(step.epoch, learnt.member.copy, self._clock.monotonic() + POSTED_SECONDS)
        if (
            learnt.stale
            and isinstance(step, MemberStep)
            and base
            and base.attempt
            and base.attempt.cluster == step.cluster
        ):
            found = self._fleet.get(step.cluster)
            if found is not None and found.api is not None:
                learnt.member = await self._actions.look(key, found, found.api)
        return learnt

    @staticmethod
    def _now_known(step: Step, learnt: Learnt, before: MemberView | None) -> MemberView | None:
        if learnt.member is not None:
            return learnt.member
        if before is None or (isinstance(step, Record) and step.spec.attempt is None):
            return None
        return msgspec.structs.replace(
            before,
            live=False,
            reservation=before.reservation
            if before.reservation and before.reservation.uid != learnt.gone_uid
            else None,
            copy=before.copy if before.copy and before.copy.uid != learnt.gone_uid else None,
            pod_group=None,
        )

    def _decide(
        self, key: Key, learnt: Learnt, member: MemberView | None, gone: frozenset[str]
    ) -> tuple[Step, Reading | None]:
        spec = self._spec(key)
        reading = self._readings.get(key, spec.policy if spec else "")
        view = self._view(key, spec, reading, learnt, member, gone)
        return attempts.next_step(spec, view, self._clock.now(), self._limits), reading

    def _settle(self, key: Key, step: Step, reading: Reading | None) -> None:
        if isinstance(step, Wait) and step.wake_after is not None:
            self.alarm(key, step.wake_after)
        if isinstance(step, Wait) and step.reason == "Nothing":
            self._forget(key)
        self._on_settled(key, step, reading)

    def _forget(self, key: Key) -> None:
        """Nothing of the job is left: nothing of it stays in memory (invariant 8)."""
        self._since.pop(key, None)
        self._posted.pop(key, None)
        self._retry.forget(key)
        if (alarm := self._alarms.pop(key, None)) is not None:
            alarm[1].cancel()

    def alarm(self, key: Key, after: float) -> None:
        """Look at it again in `after` seconds, or earlier if an earlier alarm is set already."""
        assert self._tasks is not None
        at = self._clock.monotonic() + after
        if (known := self._alarms.get(key)) is not None:
            if known[0] <= at:
                return
            known[1].cancel()
        self._alarms[key] = (at, self._tasks.create_task(self._ring(key, after)))

    async def _ring(self, key: Key, after: float) -> None:
        await self._clock.sleep(after)
        self._alarms.pop(key, None)
        self.touch(key)

    # --- looking

    def _view(
        self,
        key: Key,
        spec: BindingSpec | None,
        reading: Reading | None,
        learnt: Learnt,
        member: MemberView | None,
        gone: frozenset[str],
    ) -> View:
        view = View(
            job=None if learnt.job_gone else reading.view if reading else None,
            job_live=learnt.job_gone,
            binding_live=learnt.binding_gone,
            intent=reading.intent if reading else None,
        )
        if spec is None:
            return view
        waited = 0.0
        if spec.attempt is None:
            member = None
        else:
            waited = self._waited(key, spec.attempt.epoch, spec.attempt.state)
            if member is None or member.cluster != spec.attempt.cluster:
                member = self._cached(key, spec, gone)
        if spec.attempt is not None and spec.attempt.state == "Reserving":
            checks = self._readings.checks(key, reading)
            view = msgspec.structs.replace(view, checks_pending=checks.pending, checks_failed=checks.failed)
        return msgspec.structs.replace(view, member=member, strays=self._strays(spec, gone), waited=waited)

    def _waited(self, key: Key, epoch: int, state: str) -> float:
        now = self._clock.monotonic()
        known = self._since.get(key)
        if known is None or known[:2] != (epoch, state):
            self._since[key] = (epoch, state, now)
            return 0.0
        return now - known[2]

    def _cached(self, key: Key, spec: BindingSpec, gone: frozenset[str]) -> MemberView | None:
        attempt = spec.attempt
        assert attempt is not None
        member = self._fleet.get(attempt.cluster)
        if member is None:
            return MemberView(
                cluster=attempt.cluster, connection="Unreachable", why="it is not among the hub's members any more"
            )
        view = member.caches.view(member.view(), spec.job_id, attempt.epoch)
        posted = self._posted.get(key)
        if posted is not None:
            left = posted.until - self._clock.monotonic()
            if view.copy is not None or posted.epoch != attempt.epoch or left <= 0:
                del self._posted[key]  # the watch has caught up: from now on it alone counts
                posted = None
            else:
                self.alarm(key, left)
        copy = view.copy or (posted.copy if posted else None)
        return msgspec.structs.replace(
            view,
            copy=copy if copy is None or copy.uid not in gone else None,
            reservation=view.reservation if view.reservation and view.reservation.uid not in gone else None,
        )

    def _strays(self, spec: BindingSpec, gone: frozenset[str]) -> tuple[Stray, ...]:
        found = []
        for member in self._fleet:
            if not member.caches.has_traces(spec.job_id):
                continue
            current = spec.attempt.epoch if spec.attempt and spec.attempt.cluster == member.name else None
            stray = member.caches.stray(member.name, spec.job_id, current)
            if stray is None or member.verdict().connection != "Reachable":
                continue
            stray = msgspec.structs.replace(
                stray,
                reservations=tuple(r for r in stray.reservations if r.uid not in gone),
                copy=stray.copy if stray.copy and stray.copy.uid not in gone else None,
            )
            if stray.reservations or stray.copy or stray.pods:
                found.append(stray)
        return tuple(found)


def _rejection(spec: BindingSpec | None, message: str) -> Record | None:
    attempt = spec.attempt if spec else None
    if spec is None or attempt is None or attempt.state in ("Evicting", "Finished"):
        return None
    return attempts.rejected(spec, message)
