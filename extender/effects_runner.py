"""The one way into the core and out of it: every question, feed and tick passes here, every effect is carried out here.

All calls into the core are synchronous on the loop's own thread: that is the core's one lock. Whatever takes time is a
task of this module's group, so that a client that goes away stops no commit.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from itertools import count
from typing import Any, Literal, Protocol, TypeVarTuple, Unpack

from extender.api_effects import PodNudges, StatusWrites
from extender.commit import Committer
from extender.core import Core, FilterAnswer
from extender.effects import (
    AnswerBind,
    BindCall,
    Binding,
    Effect,
    EvictPods,
    Outcome,
    PostBindings,
    Recheck,
    RecordEvent,
    SetPodGroupStatus,
    SetReservationStatus,
    WakePods,
)
from extender.logs import line
from extender.metrics import Metrics
from extender.waiting import first_of
from extender.wire import ExtenderBindingArgs
from kube.api.clock import Clock
from kube.api.events import ObjectReference
from kube.objects.capacity import CapacityStatus
from kube.objects.pods import Pod

log = logging.getLogger(__name__)
Args = TypeVarTuple("Args")

INTERNAL_ERROR = "the extender failed on this pod, see its log"
NOT_LEADING = "this extender does not lead"


class Recorder(Protocol):
    """`kube.api.events.EventRecorder`."""

    def record(
        self, regarding: ObjectReference, type_: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None: ...


class EffectsRunner:
    """leadership_left: seconds of leadership that are left. bind_hold: seconds a bind call may last, below the
    httpTimeout of kube-scheduler's bind entry.

    `run` must be running before anything is asked.
    """

    def __init__(
        self,
        core: Core,
        clock: Clock,
        *,
        committer: Committer,
        statuses: StatusWrites,
        nudges: PodNudges,
        recorder: Recorder,
        metrics: Metrics,
        leadership_left: Callable[[], float],
        bind_hold: float,
    ) -> None:
        self.core = core
        self.changed = asyncio.Event()
        """Set whenever the core's revision has moved; the reporter clears it."""
        self._clock = clock
        self._committer = committer
        self._statuses = statuses
        self._recorder = recorder
        self._metrics = metrics
        self._leadership_left = leadership_left
        self._bind_hold = bind_hold
        self._deciding = False
        self._revision = core.revision
        self._call_ids = count(1)
        self._calls: dict[int, asyncio.Future[str]] = {}
        self._arrivals: dict[str, float] = {}
        """uid -> arrival of its open bind call, for the time a gang took to assemble."""
        self._commits: set[asyncio.Task[None]] = set()
        self._group: asyncio.TaskGroup | None = None
        self._alarm = asyncio.Event()
        self._armed = math.inf
        self._carry_out: dict[type, Callable[[Any], None]] = {
            PostBindings: self._post_bindings,
            AnswerBind: self._answer_bind,
            Recheck: self._start_recheck,
            SetReservationStatus: self._set_status,
            SetPodGroupStatus: self._set_status,
            WakePods: lambda effect: self._spawn_quietly(nudges.wake(effect)),
            EvictPods: lambda effect: self._spawn_quietly(nudges.evict(effect)),
            RecordEvent: self._record,
        }

    # --- kube-scheduler's questions (extender.server.Decisions) ---

    def filter(self, pod: Pod, node_names: Sequence[str]) -> FilterAnswer:
        if not self._leads():
            return FilterAnswer(node_names=[], error=NOT_LEADING)
        try:
            answer, effects = self.core.filter(pod, node_names, self._clock.monotonic())
            self._perform(effects)
        except Exception:
            log.exception(_bug("filter", pod.metadata.namespace, pod.metadata.name))
            self._start_over()
            return FilterAnswer(node_names=[], error=INTERNAL_ERROR)
        return answer

    def preempt(
        self, pod: Pod, victims: Mapping[str, tuple[Sequence[str], int]]
    ) -> Mapping[str, tuple[Sequence[str], int]]:
        if not self._leads():
            return {}
        try:
            return self.core.preempt(pod, victims, self._clock.monotonic())
        except Exception:
            log.exception(_bug("preempt", pod.metadata.namespace, pod.metadata.name))
            self._start_over()
            return {}

    async def bind(self, args: ExtenderBindingArgs, arrived: float) -> str:
        if not self._leads():
            return NOT_LEADING
        call = BindCall(
            id=next(self._call_ids),
            uid=args.pod_uid,
            namespace=args.pod_namespace,
            name=args.pod_name,
            node=args.node,
            deadline=arrived + self._bind_hold,
        )
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._calls[call.id] = answer
        self._arrivals[call.uid] = arrived
        try:
            self.tell(self.core.bind_arrived, call)
        except Exception:
            log.exception(_bug("bind", call.namespace, call.name))
            self._start_over()
        try:
            return await answer
        finally:
            if self._arrivals.get(call.uid) == arrived:  # not that of a newer call for the same pod
                del self._arrivals[call.uid]
            if self._calls.pop(call.id, None) is not None:  # nobody answered it
                self._spawn(self._abandon(call.id))

    # --- feed and life ---

    def tell(self, method: Callable[[Unpack[Args], float], list[Effect]], *args: *Args) -> None:
        """Calls a method of the core with the time as its last argument and carries out what comes of it."""
        self._perform(method(*args, self._clock.monotonic()))

    @property
    def deciding(self) -> bool:
        """Caches are complete and this process leads."""
        return self._deciding and self._leads()

    def synced(self) -> None:
        self._deciding = True
        self.tell(self.core.synced)
        self.changed.set()

    def stood_down(self) -> None:
        """Every held call is answered with an error at once."""
        self._deciding = False
        self.tell(self.core.stood_down)
        self.changed.set()

    def report(self) -> CapacityStatus | None:
        """The present capacity; None while not deciding."""
        return self.core.report() if self.deciding else None

    async def run(self) -> None:
        """Ticks, and is the parent of everything under way. Ends only by cancellation or by a bug's exception."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            while True:
                due = self.core.next_wakeup()
                if due is not None and due <= self._clock.monotonic():
                    self.tell(self.core.tick)
                    await asyncio.sleep(0)
                    continue
                self._armed = math.inf if due is None else due
                self._alarm.clear()
                pause = None if due is None else self._clock.sleep(max(0.0, due - self._clock.monotonic()))
                await first_of(self._alarm.wait(), pause)

    async def drain(self) -> None:
        """Until no commit is under way."""
        while self._commits:
            await asyncio.wait(self._commits)

    # --- effects ---

    def _leads(self) -> bool:
        return self._leadership_left() > 0

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._carry_out[type(effect)](effect)
        due = self.core.next_wakeup()
        if due is not None and due < self._armed:
            self._alarm.set()
        if self.core.revision != self._revision:
            self._revision = self.core.revision
            self.changed.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._group is not None, "run() has to be running"
        return self._group.create_task(work)

    def _commit(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._spawn(work)
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)
        return task

    def _spawn_quietly(self, work: Coroutine[Any, Any, None]) -> None:
        self._spawn(work)

    async def _abandon(self, call_id: int) -> None:
        self.tell(self.core.bind_abandoned, call_id)

    def _post_bindings(self, effect: PostBindings) -> None:
        posts = [self._commit(self._post(binding)) for binding in effect.bindings]
        if effect.gang:
            began = min((self._arrivals.get(b.uid, math.inf) for b in effect.bindings), default=math.inf)
            if began < math.inf:
                self._spawn(self._measure_assembly(began, posts))

    async def _post(self, binding: Binding) -> None:
        outcome, reason = await self._committer.post(binding)
        if outcome not in (Outcome.BOUND, Outcome.ALREADY_THERE):
            log.log(
                # A gang that misses its fence misses it whole: a line for each would drown the log.
                logging.DEBUG if outcome is Outcome.NOT_SENT else logging.WARNING,
                line(
                    "binding not made",
                    namespace=binding.namespace,
                    pod=binding.name,
                    node=binding.node,
                    outcome=outcome.value,
                    reason=reason,
                ),
            )
        self.tell(self.core.posted, binding.uid, binding.node, outcome, reason)

    async def _measure_assembly(self, began: float, posts: list[asyncio.Task[None]]) -> None:
        await asyncio.wait(posts)
        self._metrics.gang_assembly_seconds.observe(self._clock.monotonic() - began)

    def _start_recheck(self, effect: Recheck) -> None:
        self._commit(self._recheck(effect))

    async def _recheck(self, effect: Recheck) -> None:
        failure = await self._committer.recheck(effect)
        self.tell(self.core.recheck_done, effect.gang, effect.token, failure)

    def _answer_bind(self, effect: AnswerBind) -> None:
        answer = self._calls.pop(effect.call_id, None)
        if answer is not None and not answer.done():
            answer.set_result(effect.error)

    def _set_status(self, effect: SetReservationStatus | SetPodGroupStatus) -> None:
        writing = self._statuses.submit(effect)
        if writing is not None:
            self._spawn(writing)

    def _record(self, effect: RecordEvent) -> None:
        ref = effect.ref
        self._recorder.record(
            ObjectReference(
                api_version=ref.api_version, kind=ref.kind, namespace=ref.namespace, name=ref.name, uid=ref.uid
            ),
            "Warning" if effect.type == "Warning" else "Normal",
            effect.reason,
            effect.message,
        )

    def _start_over(self) -> None:
        """After a bug in answering one pod: the core may be half changed, so it is rebuilt from its caches.

        One odd pod must not stop the whole cluster's scheduling, as an end of the process would, again and again.
        """
        for answer in self._calls.values():
            if not answer.done():
                answer.set_result(INTERNAL_ERROR)
        self._calls.clear()
        if self._deciding:
            self._spawn(self._rebuild())

    async def _rebuild(self) -> None:
        if self._deciding:
            self.stood_down()
            self.synced()


def _bug(verb: str, namespace: str, name: str) -> str:
    return line("bug: the core failed on a pod, starting over", verb=verb, namespace=namespace, pod=name)
