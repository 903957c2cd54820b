"""The POST of a Binding, its time fence, and the live reads before a commit."""

import asyncio

import pytest

from extender.commit import Committer
from extender.effects import Binding, Outcome, Recheck
from extender.metrics import Metrics
from kube.api.api import NODES, POD_GROUPS, PODS
from kube.api.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    StatusError,
    TooManyRequests,
    Unreachable,
)
from tests.unit.extender_doubles import Call, ManualClock, ScriptedApi, settle

POST = "create pods/binding ns/p"
REREAD = "get pods ns/p"
TIMEOUT = 2.0


class Sink:
    """What live reads fed."""

    def __init__(self, nodes_age: float = 0.0) -> None:
        self.fed: list[tuple[str, str, bool]] = []
        self.age = nodes_age

    def live_node(self, name, node):
        self.fed.append(("node", name, node is not None))

    def live_pod_group(self, namespace, name, group):
        self.fed.append(("pod group", f"{namespace}/{name}", group is not None))

    def live_reservation(self, namespace, name, reservation):
        self.fed.append(("reservation", f"{namespace}/{name}", reservation is not None))

    def live_pod(self, pod):
        self.fed.append(("pod", pod.metadata.name, True))

    def nodes_age(self):
        return self.age


class Case:
    def __init__(self, *, concurrency: int = 48, shared_nodes: bool = False) -> None:
        self.clock = ManualClock()
        self.api = ScriptedApi()
        self.sink = Sink()
        self.leadership = 100.0
        self.metrics = Metrics(version="test")
        self.committer = Committer(
            self.api,
            self.clock,
            self.sink,
            self.metrics,
            leadership_left=lambda: self.leadership,
            post_timeout=TIMEOUT,
            read_timeout=TIMEOUT,
            concurrency=concurrency,
            few_nodes=2,
            trust_watch=15.0,
            shared_nodes=shared_nodes,
        )

    def binding(self, *, deadline_in: float = 70.0, name: str = "p") -> Binding:
        return Binding(uid="u", namespace="ns", name=name, node="n1", deadline=self.clock.monotonic() + deadline_in)

    def pod_is(self, *, uid: str = "u", node: str = "") -> None:
        spec = {"nodeName": node} if node else {}
        self.api.put(PODS, {"metadata": {"name": "p", "namespace": "ns", "uid": uid}, "spec": spec})


@pytest.fixture
def case() -> Case:
    return Case()


async def test_the_binding_names_pod_uid_and_node(case):
    assert await case.committer.post(case.binding()) == (Outcome.BOUND, "")
    (call,) = case.api.calls
    assert call.target == POST
    assert call.body == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }


# --- the time fence: more than the POST's own timeout (2 s) has to be left ---


@pytest.mark.parametrize(("left", "sent"), [(2.001, True), (2.0, False), (1.0, False), (-5.0, False)])
async def test_the_deadline_of_the_call_must_leave_more_than_the_timeout(case, left, sent):
    outcome, reason = await case.committer.post(case.binding(deadline_in=left))
    assert (outcome is Outcome.BOUND) is sent
    assert bool(case.api.calls) is sent
    assert ("too late" in reason) is not sent


@pytest.mark.parametrize(("left", "sent"), [(2.001, True), (2.0, False), (0.0, False)])
async def test_the_leadership_must_leave_more_than_the_timeout(case, left, sent):
    case.leadership = left
    outcome, _ = await case.committer.post(case.binding())
    assert (outcome is Outcome.BOUND) is sent
    assert bool(case.api.calls) is sent


async def test_a_stop_of_the_process_before_the_post_is_noticed(case):
    """SIGSTOP after the decision, for longer than kube-scheduler waits: the clock ran on, nothing is posted."""
    post = asyncio.ensure_future(case.committer.post(case.binding(deadline_in=70.0)))
    case.clock.jump(75.0)
    outcome, _ = await post
    assert outcome is Outcome.NOT_SENT
    assert case.api.calls == []


async def test_a_binding_that_waits_for_its_turn_passes_the_fence_when_the_turn_comes():
    """One POST at a time; the first is stuck while 69 s pass, so the second is too late when it gets its turn."""
    case = Case(concurrency=1)
    released = asyncio.Event()

    async def slow(call: Call) -> bytes:
        await released.wait()
        return b"{}"

    case.api.answers[POST] = [slow]
    first = asyncio.ensure_future(case.committer.post(case.binding()))
    second = asyncio.ensure_future(case.committer.post(case.binding(name="q")))
    await settle()
    case.clock.jump(69.0)
    released.set()
    assert (await first)[0] is Outcome.BOUND
    assert (await second)[0] is Outcome.NOT_SENT
    assert case.api.targets() == [POST]


# --- answers of the API server ---


async def test_already_on_this_very_node_is_success(case):
    """kubernetes#96579: a bind that worked but timed out is called again."""
    case.api.answers[POST] = [Conflict(409, "Conflict", "pod p is already assigned to node n1")]
    case.pod_is(node="n1")
    assert await case.committer.post(case.binding()) == (Outcome.ALREADY_THERE, "")


async def test_on_another_node_is_a_conflict(case):
    case.api.answers[POST] = [Conflict(409, "Conflict", "already assigned")]
    case.pod_is(node="n2")
    assert await case.committer.post(case.binding()) == (Outcome.CONFLICT, "already assigned")


async def test_deleting_or_gated_is_a_conflict(case):
    case.api.answers[POST] = [Conflict(409, "Conflict", "pod p has non-empty .spec.schedulingGates")]
    case.pod_is()
    assert (await case.committer.post(case.binding()))[0] is Outcome.CONFLICT


async def test_another_pod_of_that_name_means_gone(case):
    case.api.answers[POST] = [Conflict(409, "Conflict", "Precondition failed: UID in precondition: u")]
    case.pod_is(uid="later", node="n1")
    assert (await case.committer.post(case.binding()))[0] is Outcome.GONE


async def test_a_conflict_whose_cause_cannot_be_read_leaves_it_open(case):
    case.api.answers[POST] = [Conflict(409, "Conflict", "already assigned")]
    case.api.answers[REREAD] = [Unreachable("no route")]
    outcome, reason = await case.committer.post(case.binding())
    assert outcome is Outcome.UNKNOWN
    assert "already assigned" in reason


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (NotFound(404, "NotFound", "pods p not found"), Outcome.GONE),
        (Unreachable("timed out"), Outcome.UNKNOWN),
        (StatusError(500, "InternalError", "etcdserver: request timed out"), Outcome.UNKNOWN),
        (StatusError(504, "Timeout", "gateway"), Outcome.UNKNOWN),
        (TooManyRequests(429, "TooManyRequests", "slow down", 1.0), Outcome.REJECTED),
        (Forbidden(403, "Forbidden", "no right"), Outcome.REJECTED),
        (Invalid(422, "Invalid", "no"), Outcome.REJECTED),
    ],
)
async def test_every_other_answer_says_whether_it_may_have_bound(case, error: ApiError, outcome):
    case.api.answers[POST] = [error]
    found, reason = await case.committer.post(case.binding())
    assert found is outcome
    assert reason
    assert case.api.targets() == [POST], "trying again is the core's decision"


# --- live reads before a commit ---

NODE = {"metadata": {"name": "n1", "uid": "node-u"}, "spec": {}, "status": {}}
GROUP = {"metadata": {"name": "g", "namespace": "ns", "uid": "group-u"}, "spec": {"minMember": 3}}


def recheck(nodes: tuple[str, ...]) -> Recheck:
    return Recheck(gang="g", token=1, nodes=nodes, pod_group=("ns", "g"), reservation=("muster-system", "j-1"))


async def test_a_recheck_feeds_what_it_read_and_not_found_is_an_answer(case):
    case.api.put(NODES, dict(NODE))
    case.api.put(POD_GROUPS, dict(GROUP))
    assert await case.committer.recheck(recheck(("n1",))) == ""
    assert sorted(case.sink.fed) == [
        ("node", "n1", True),
        ("pod group", "ns/g", True),
        ("reservation", "muster-system/j-1", False),
    ]


@pytest.mark.parametrize("what", ["get nodes /n1", "get podgroups ns/g", "get gangreservations muster-system/j-1"])
async def test_a_read_without_answer_fails_the_recheck_and_says_which(case, what):
    case.api.put(NODES, dict(NODE))
    case.api.answers[what] = [Unreachable("reset")]
    failure = await case.committer.recheck(recheck(("n1",)))
    assert "reset" in failure
    assert what.rpartition("/")[2] in failure


async def test_an_object_that_cannot_be_understood_fails_the_recheck(case):
    case.api.answers["get podgroups ns/g"] = [b'{"metadata":{"name":"g"},"spec":{"minMember":"three"}}']
    assert "minMember" in await case.committer.recheck(recheck(()))


async def test_many_nodes_are_taken_from_a_watch_that_is_alive(case):
    assert await case.committer.recheck(recheck(("n1", "n2", "n3"))) == ""
    assert case.api.targets("nodes") == []


async def test_many_nodes_are_read_live_when_the_watch_was_silent_for_long(case):
    case.sink.age = 16.0
    await case.committer.recheck(recheck(("n1", "n2", "n3")))
    assert len(case.api.targets("get nodes")) == 3


class TestNodesThatAnotherSchedulerUsesToo:
    @pytest.fixture
    def case(self):
        return Case(shared_nodes=True)

    async def test_their_pods_are_listed_however_many_nodes_there_are(self, case):
        case.pod_is(node="n1")
        assert await case.committer.recheck(recheck(("n1", "n2", "n3"))) == ""
        assert case.api.targets("list pods") == ["list pods /"] * 3
        assert ("pod", "p", True) in case.sink.fed

    async def test_a_list_without_answer_fails_the_recheck_and_says_which(self, case):
        case.api.answers["list pods /"] = [Unreachable("reset")]
        failure = await case.committer.recheck(recheck(("n1",)))
        assert "reset" in failure
        assert "n1" in failure

    async def test_a_pod_that_cannot_be_understood_hides_no_other(self, case):
        case.api.put(PODS, {"metadata": {"name": "odd", "namespace": "ns"}, "spec": {"containers": "none"}})
        case.pod_is(node="n1")
        assert await case.committer.recheck(recheck(("n1",))) == ""
        assert [name for kind, name, _ in case.sink.fed if kind == "pod"] == ["p"]


async def test_without_another_scheduler_no_pods_are_listed(case):
    await case.committer.recheck(recheck(("n1",)))
    assert case.api.targets("list pods") == []


async def test_bindings_are_counted_by_what_became_of_them(case):
    case.api.answers[POST] = [Unreachable("x")]
    await case.committer.post(case.binding())
    await case.committer.post(case.binding())
    await case.committer.post(case.binding(deadline_in=1.0))
    text = case.metrics.exposition().decode()
    assert 'muster_binds_total{result="unknown"} 1.0' in text
    assert 'muster_binds_total{result="bound"} 1.0' in text
    assert 'muster_binds_total{result="not_sent"} 1.0' in text
    assert "muster_bind_duration_seconds_count 2.0" in text
