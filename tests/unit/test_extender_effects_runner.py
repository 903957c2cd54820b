"""The shell around the core: calls held and answered, effects carried out, time, faults."""

import asyncio
import math
from collections.abc import Callable

import pytest

from extender.api_effects import PodNudges, StatusWrites
from extender.commit import Committer
from extender.config import CoreConfig
from extender.core import Core, FilterAnswer
from extender.effects import (
    AnswerBind,
    BindCall,
    Binding,
    Effect,
    EvictPods,
    ObjectRef,
    Outcome,
    PodRef,
    PostBindings,
    Recheck,
    RecordEvent,
    SetReservationStatus,
    WakePods,
)
from extender.effects_runner import INTERNAL_ERROR, NOT_LEADING, EffectsRunner
from extender.metrics import Metrics
from extender.wire import ExtenderBindingArgs
from kube.api.api import RESERVATIONS
from kube.api.errors import Conflict, Unreachable
from kube.objects.meta import ObjectMeta
from kube.objects.pods import Pod, PodSpec
from kube.objects.reservation import ReservationStatus
from tests.unit.extender_doubles import Call, ManualClock, ScriptedApi, settle

POD = Pod(metadata=ObjectMeta(name="p", namespace="ns", uid="u"), spec=PodSpec())
ARGS = ExtenderBindingArgs(pod_name="p", pod_namespace="ns", pod_uid="u", node="n1")


class ScriptedCore(Core):
    """Answers with what the test prepared; keeps a diary of what it was told."""

    def __init__(self):
        super().__init__(CoreConfig())
        self.diary = []
        self.calls = []
        self.on_bind: Callable[[BindCall], list[Effect]] = lambda call: []
        self.on_posted: Callable[[str], list[Effect]] = lambda uid: []
        self.on_filter: Callable[[], tuple[FilterAnswer, list[Effect]]] = lambda: (FilterAnswer(node_names=["n1"]), [])
        self.on_tick: Callable[[], list[Effect]] = list
        self.due = None
        self.rev = 0

    @property
    def revision(self):
        return self.rev

    def next_wakeup(self):
        return self.due

    def filter(self, pod, node_names, now):
        return self.on_filter()

    def preempt(self, pod, victims, now):
        raise ZeroDivisionError

    def bind_arrived(self, call, now):
        self.calls.append(call)
        return self.on_bind(call)

    def bind_abandoned(self, call_id, now):
        self.diary.append(("abandoned", call_id))
        return []

    def posted(self, uid, node, outcome, reason, now):
        self.diary.append(("posted", uid, node, outcome))
        return self.on_posted(uid)

    def recheck_done(self, gang, token, failure, now):
        self.diary.append(("recheck", gang, token, failure))
        return []

    def synced(self, now):
        self.diary.append("synced")
        return []

    def stood_down(self, now):
        self.diary.append("stood down")
        return [AnswerBind(call.id, "stood down") for call in self.calls]

    def tick(self, now):
        self.diary.append(("tick", now))
        return self.on_tick()


class Recorder:
    def __init__(self):
        self.events = []

    def record(self, regarding, type_, reason, message, *, component=""):
        self.events.append((regarding.kind, regarding.name, type_, reason, message))


class Sink:
    def live_node(self, name, node): ...

    def live_pod_group(self, namespace, name, group): ...

    def live_reservation(self, namespace, name, reservation): ...

    def live_pod(self, pod): ...

    def nodes_age(self):
        return math.inf


class Case:
    def __init__(self):
        self.clock = ManualClock()
        self.api = ScriptedApi()
        self.core = ScriptedCore()
        self.left = 100.0
        self.metrics = Metrics(version="test")
        self.recorder = Recorder()
        self.runner = EffectsRunner(
            self.core,
            self.clock,
            committer=Committer(
                self.api,
                self.clock,
                Sink(),
                self.metrics,
                leadership_left=lambda: self.left,
                post_timeout=2.0,
                read_timeout=2.0,
            ),
            statuses=StatusWrites(self.api, self.clock, timeout=10.0),
            nudges=PodNudges(self.api, self.clock, timeout=10.0),
            recorder=self.recorder,
            metrics=self.metrics,
            leadership_left=lambda: self.left,
            bind_hold=72.0,
        )
        self.task = asyncio.ensure_future(self.runner.run())

    def perform(self, *effects):
        """As if the core had asked for them just now."""
        self.core.on_tick = lambda: list(effects)
        self.runner.tell(self.core.tick)
        self.core.on_tick = list

    def bind(self, args=ARGS):
        return asyncio.ensure_future(self.runner.bind(args, self.clock.monotonic()))


@pytest.fixture
async def case():
    case = Case()
    await settle()
    yield case
    case.task.cancel()
    await asyncio.gather(case.task, return_exceptions=True)


def binding(case, uid="u", name="p"):
    return Binding(uid=uid, namespace="ns", name=name, node="n1", deadline=case.clock.monotonic() + 72.0)


async def test_a_bind_is_held_until_the_core_answers(case):
    call = case.bind()
    await settle()
    assert not call.done()
    (arrived,) = case.core.calls
    assert arrived.deadline == case.clock.monotonic() + 72.0
    case.perform(AnswerBind(arrived.id, "does not fit"))
    assert await call == "does not fit"


async def test_post_then_answer(case):
    """The way of an ordinary pod: charge, POST, answer."""
    case.core.on_bind = lambda call: [PostBindings(bindings=(binding(case),))]
    case.core.on_posted = lambda uid: [AnswerBind(case.core.calls[0].id)]
    assert await case.bind() == ""
    assert case.core.diary == [("posted", "u", "n1", Outcome.BOUND)]
    assert case.api.targets() == ["create pods/binding ns/p"]


async def test_a_client_that_goes_away_does_not_stop_a_commit(case):
    released = asyncio.Event()

    async def slow(_: Call) -> bytes:
        await released.wait()
        return b"{}"

    case.api.answers["create pods/binding ns/p"] = [slow]
    case.core.on_bind = lambda call: [PostBindings(bindings=(binding(case),))]
    call = case.bind()
    await settle()
    call.cancel()
    await settle()
    assert case.core.diary == [("abandoned", case.core.calls[0].id)]
    released.set()
    await settle()
    assert case.core.diary[-1] == ("posted", "u", "n1", Outcome.BOUND)


async def test_an_answered_call_is_never_abandoned_as_well(case):
    call = case.bind()
    await settle()
    case.perform(AnswerBind(case.core.calls[0].id, ""))
    call.cancel()
    await settle()
    assert ("abandoned", case.core.calls[0].id) not in case.core.diary


async def test_a_gang_is_posted_in_parallel(case):
    """No POST waits for another: all ten are under way before the first is answered."""
    released = asyncio.Event()
    under_way = []

    async def slow(call: Call) -> bytes:
        under_way.append(call.name)
        await released.wait()
        return b"{}"

    for i in range(10):
        case.api.answers[f"create pods/binding ns/p{i}"] = [slow]
    case.perform(PostBindings(bindings=tuple(binding(case, uid=f"u{i}", name=f"p{i}") for i in range(10)), gang="g"))
    await settle()
    assert len(under_way) == 10
    released.set()
    await settle()
    assert sorted(entry[1] for entry in case.core.diary if entry[0] == "posted") == sorted(f"u{i}" for i in range(10))


async def test_drain_waits_for_posts_under_way(case):
    released = asyncio.Event()

    async def slow(_: Call) -> bytes:
        await released.wait()
        return b"{}"

    case.api.answers["create pods/binding ns/p"] = [slow]
    case.perform(PostBindings(bindings=(binding(case),)))
    draining = asyncio.ensure_future(case.runner.drain())
    await settle()
    assert not draining.done()
    released.set()
    await settle()
    assert draining.done()


async def test_a_recheck_reports_what_could_not_be_read(case):
    case.api.answers["get podgroups ns/g"] = [Unreachable("reset by peer")]
    case.perform(Recheck(gang="ns/g", token=7, nodes=(), pod_group=("ns", "g")))
    await settle()
    (entry,) = [e for e in case.core.diary if e[0] == "recheck"]
    assert entry[1:3] == ("ns/g", 7)
    assert "reset by peer" in entry[3]


# --- leadership ---


async def test_without_leadership_nothing_reaches_the_core(case):
    case.left = 0.0
    assert case.runner.filter(POD, ["n1"]).error == NOT_LEADING
    assert case.runner.filter(POD, ["n1"]).node_names == []
    assert await case.bind() == NOT_LEADING
    assert case.runner.preempt(POD, {"n1": ([], 0)}) == {}
    assert case.core.calls == []


async def test_standing_down_answers_every_held_call(case):
    calls = [case.bind() for _ in range(3)]
    await settle()
    case.runner.synced()
    case.runner.stood_down()
    assert [await call for call in calls] == ["stood down"] * 3
    assert not case.runner.deciding


# --- time ---


async def test_ticks_come_when_they_are_due(case):
    case.core.due = case.clock.monotonic() + 5.0
    case.runner.synced()  # any call makes the shell look at the next wake-up

    def tick():
        case.core.due = None
        return []

    case.core.on_tick = tick
    await case.clock.advance(4.9)
    assert case.core.diary == ["synced"]
    await case.clock.advance(0.2)
    assert case.core.diary == ["synced", ("tick", 1005.0)]


async def test_an_earlier_wakeup_replaces_a_later_one(case):
    def tick():
        case.core.due = None
        return []

    case.core.on_tick = tick
    case.core.due = case.clock.monotonic() + 500.0
    case.runner.synced()
    await settle()
    case.core.due = case.clock.monotonic() + 1.0
    case.runner.synced()
    await case.clock.advance(1.0)
    assert ("tick", 1001.0) in case.core.diary


async def test_a_moved_revision_tells_the_reporter(case):
    case.runner.changed.clear()
    case.runner.tell(case.core.tick)
    assert not case.runner.changed.is_set()
    case.core.rev += 1
    case.runner.tell(case.core.tick)
    assert case.runner.changed.is_set()


# --- faults of our own ---


async def test_a_bug_met_by_one_pod_answers_that_pod_and_starts_over(case):
    case.runner.synced()
    held = case.bind()
    await settle()

    def bug():
        raise KeyError("slot")

    case.core.on_filter = bug
    answer = case.runner.filter(POD, ["n1"])
    assert answer == FilterAnswer(node_names=[], error=INTERNAL_ERROR)
    assert await held == INTERNAL_ERROR, "its charge is forgotten with everything else"
    await settle()
    assert case.core.diary[-2:] == ["stood down", "synced"]
    case.core.on_filter = lambda: (FilterAnswer(node_names=["n1"]), [])
    assert case.runner.filter(POD, ["n1"]).node_names == ["n1"]
    assert not case.task.done(), "the process goes on"


async def test_a_bug_in_preempt_is_a_veto(case):
    assert case.runner.preempt(POD, {"n1": (["v"], 0)}) == {}


async def test_a_bug_in_time_ends_the_process(case):
    """Nobody asked, so nobody can be told: the supervisor starts a fresh one."""

    def bug():
        raise KeyError("slot")

    case.core.on_tick = bug
    case.core.due = case.clock.monotonic()
    case.runner.changed.set()
    case.runner._alarm.set()
    await settle()
    with pytest.raises(ExceptionGroup):
        await case.task
    case.task = asyncio.ensure_future(asyncio.sleep(0))


# --- writes beside Bindings ---


def status(version="7", state="Reserved"):
    return SetReservationStatus(
        namespace="muster-system", name="j-1", resource_version=version, status=ReservationStatus(state=state)
    )


PUT = "replace gangreservations/status muster-system/j-1"


async def test_a_status_carries_the_version_it_was_decided_on(case):
    case.api.put(RESERVATIONS, {"metadata": {"name": "j-1", "namespace": "muster-system"}, "spec": {}})
    version = case.api.objects[("GangReservation", "muster-system", "j-1")]["metadata"]["resourceVersion"]
    case.perform(status(version))
    await settle()
    (call,) = case.api.calls
    assert call.target == PUT
    assert call.body["metadata"]["resourceVersion"] == version
    assert call.body["status"] == {"state": "Reserved"}


async def test_a_status_that_lost_a_conflict_is_left_alone(case):
    """PROTOCOL rule 13: a refusal by TTL must lose against "dispatched"; the newer object is judged again."""
    case.api.answers[PUT] = [Conflict(409, "Conflict", "modified")]
    case.perform(status())
    await case.clock.advance(60.0)
    assert case.api.targets() == [PUT]


async def test_a_status_is_tried_again_while_the_api_server_is_away(case):
    case.api.answers[PUT] = [Unreachable("refused"), Unreachable("refused"), b"{}"]
    case.perform(status())
    await case.clock.advance(60.0)
    assert case.api.targets() == [PUT] * 3


async def test_a_newer_wish_replaces_one_that_waits(case):
    case.api.answers[PUT] = [Unreachable("refused"), b"{}"]
    case.perform(status("7", "Reserved"))
    await settle()
    case.perform(status("8", "Refused"))
    case.perform(status("9", "Landed"))
    await case.clock.advance(60.0)
    assert [call.body["status"]["state"] for call in case.api.calls] == ["Reserved", "Landed"]


async def test_waking_patches_an_annotation_of_that_very_pod(case):
    case.perform(WakePods(pods=(PodRef("ns", "p", "u"), PodRef("ns", "q", "v")), reason="room"))
    await settle()
    assert case.api.targets() == ["patch pods ns/p", "patch pods ns/q"]
    body = case.api.calls[0].body
    assert body["metadata"]["uid"] == "u"
    assert "muster.dev/wake" in body["metadata"]["annotations"]


async def test_evictions_go_through_the_eviction_api_with_the_uid(case):
    case.api.answers["create pods/eviction ns/p"] = [Conflict(409, "Conflict", "uid")]
    case.perform(EvictPods(gang="g", pods=(PodRef("ns", "p", "u"), PodRef("ns", "q", "v")), reason="below minimum"))
    await settle()
    assert case.api.targets() == ["create pods/eviction ns/p", "create pods/eviction ns/q"]
    assert case.api.calls[1].body["deleteOptions"] == {"preconditions": {"uid": "v"}}


async def test_events_are_recorded(case):
    ref = ObjectRef(api_version="v1", kind="Pod", namespace="ns", name="p", uid="u")
    case.perform(RecordEvent(ref=ref, type="Warning", reason="GangTimeout", message="2 of 3 came"))
    assert case.recorder.events == [("Pod", "p", "Warning", "GangTimeout", "2 of 3 came")]


async def test_the_time_a_gang_took_is_measured_from_its_first_member(case):
    calls = [
        asyncio.ensure_future(
            case.runner.bind(
                ExtenderBindingArgs(pod_name=f"p{i}", pod_namespace="ns", pod_uid=f"u{i}", node="n1"),
                case.clock.monotonic(),
            )
        )
        for i in range(2)
    ]
    await settle()
    await case.clock.advance(3.0)
    case.perform(PostBindings(bindings=tuple(binding(case, uid=f"u{i}", name=f"p{i}") for i in range(2)), gang="g"))
    await settle()
    text = case.metrics.exposition().decode()
    assert "muster_gang_assembly_seconds_sum 3.0" in text
    for call in calls:
        call.cancel()
