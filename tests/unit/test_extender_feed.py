"""From watches and live reads into the core: order, deletions, CRDs that are not there, fresh lists."""

import asyncio

import pytest

from extender.config import CoreConfig
from extender.core import Core
from extender.feed import Feed
from extender.metrics import Metrics
from kube.api.api import NODES, POD_GROUPS, PODS
from kube.api.errors import Forbidden, NotFound
from kube.objects.meta import ObjectMeta
from kube.objects.nodes import Node
from tests.unit.extender_doubles import ManualClock, ScriptedApi, settle
from tests.unit.extender_objects import pod

GROUPS = "list podgroups /"


class Diary(Core):
    """Writes down which method was called with what."""

    def __init__(self):
        super().__init__(CoreConfig())
        self.entries = []

    def _note(self, what, *args):
        self.entries.append((what, *args))
        return []

    def node_changed(self, node, now):
        return self._note("node", node.metadata.name, node.metadata.resource_version)

    def node_deleted(self, name, now):
        return self._note("node gone", name)

    def pod_changed(self, pod, now):
        return self._note("pod", pod.metadata.name)

    def pod_deleted(self, namespace, name, uid, now):
        return self._note("pod gone", namespace, name, uid)

    def pod_group_changed(self, group, now):
        return self._note("group", group.metadata.name, group.spec.min_member)

    def pod_group_deleted(self, namespace, name, now):
        return self._note("group gone", namespace, name)

    def reservation_changed(self, reservation, now):
        return self._note("reservation", reservation.metadata.name)

    def resource_quota_changed(self, quota, now):
        return self._note("quota", quota.metadata.name)

    def priority_class_changed(self, priority_class, now):
        return self._note("priority class", priority_class.metadata.name)

    def runtime_class_changed(self, runtime_class, now):
        return self._note("runtime class", runtime_class.metadata.name)


class Case:
    def __init__(self):
        self.clock = ManualClock()
        self.api = ScriptedApi()
        self.core = Diary()
        self.metrics = Metrics(version="test")
        self.feed = Feed(self.api, self.clock, self.core, self.tell, self.metrics, reservations_in="muster-system")
        self.task = None

    def tell(self, method, *args):
        method(*args, self.clock.monotonic())

    async def run(self):
        self.task = asyncio.ensure_future(self.feed.run())
        await settle(60)

    def node(self, name="n1", uid="node-u"):
        return self.api.put(NODES, {"metadata": {"name": name, "uid": uid}, "spec": {}, "status": {}})

    def pod(self, name="p", uid="u"):
        self.api.put(PODS, {"metadata": {"name": name, "namespace": "ns", "uid": uid}, "spec": {}})


@pytest.fixture
async def case():
    case = Case()
    yield case
    if case.task is not None:
        case.task.cancel()
        await asyncio.gather(case.task, return_exceptions=True)


async def test_everything_listed_is_told_and_then_it_is_synced(case):
    case.node()
    case.pod()
    case.api.put(POD_GROUPS, {"metadata": {"name": "g", "namespace": "ns", "uid": "g"}, "spec": {"minMember": 3}})
    assert "pods" in case.feed.missing()
    await case.run()
    assert ("pod", "p") in case.core.entries
    assert ("group", "g", 3) in case.core.entries
    assert case.feed.missing() == []
    await asyncio.wait_for(case.feed.wait_synced(), 1)


async def test_reservations_are_read_in_their_namespace_only(case):
    await case.run()
    assert "list gangreservations muster-system/" in case.api.targets()


async def test_a_crd_that_is_not_installed_does_not_keep_it_from_getting_ready(case, caplog):
    case.api.answers[GROUPS] = [NotFound(404, "NotFound", "the server could not find the requested resource")]
    await case.run()
    assert case.feed.missing() == []
    assert "not installed here, treated as none resource=podgroups" in caplog.text
    # It is installed later: its objects come by themselves.
    case.api.put(POD_GROUPS, {"metadata": {"name": "g", "namespace": "ns", "uid": "g"}, "spec": {"minMember": 2}})
    await case.clock.advance(20.0)
    await settle(60)
    assert ("group", "g", 2) in case.core.entries


async def test_a_right_that_is_missing_is_not_taken_for_an_absence(case):
    case.api.answers[GROUPS] = [Forbidden(403, "Forbidden", "no right")] * 1000
    await case.run()
    await case.clock.advance(60.0)
    assert case.feed.missing() == ["podgroups"]


async def test_a_core_resource_that_is_not_found_is_not_taken_for_an_absence(case):
    case.api.answers["list pods /"] = [NotFound(404, "NotFound", "what?")] * 1000
    await case.run()
    assert case.feed.missing() == ["pods"]


async def test_a_fresh_list_finds_what_vanished_unseen(case):
    case.pod(uid="u1")
    case.node()
    await case.run()
    case.core.entries.clear()
    del case.api.objects[("Pod", "ns", "p")]
    case.pod(name="q")
    case.feed.list_again()
    assert "pods" in case.feed.missing()
    await settle(60)
    assert case.feed.missing() == []
    assert case.core.entries == [("pod", "q"), ("pod gone", "ns", "p", "u1")]


async def test_a_live_read_is_told_once_and_a_live_absence_is_a_deletion(case):
    case.node()
    await case.run()
    case.core.entries.clear()
    fresh = Node(metadata=ObjectMeta(name="n1", uid="node-u", resource_version="900"))
    case.feed.live_node("n1", fresh)
    case.feed.live_node("n1", fresh)
    assert case.core.entries == [("node", "n1", "900")]
    case.feed.live_node("n1", None)
    assert case.core.entries[-1] == ("node gone", "n1")
    case.feed.live_pod_group("ns", "never-there", None)
    assert len(case.core.entries) == 2


async def test_a_pod_of_another_scheduler_is_told_by_a_live_list_before_the_watch_does(case):
    await case.run()
    case.core.entries.clear()
    theirs = pod("theirs", node="n1")
    case.feed.live_pod(theirs)
    case.feed.live_pod(theirs)
    assert case.core.entries == [("pod", "theirs")]


async def test_watches_that_fail_are_counted_by_resource(case):
    case.api.answers[GROUPS] = [Forbidden(403, "Forbidden", "no right")]
    await case.run()
    text = case.metrics.exposition().decode()
    assert 'muster_watch_restarts_total{resource="podgroups"} 1.0' in text
    assert 'muster_watch_restarts_total{resource="pods"} 0.0' in text
    assert 'muster_cache_last_event_age_seconds{resource="pods"} 0.0' in text


async def test_an_object_that_is_not_understood_is_named_and_the_rest_goes_on(case, caplog):
    case.api.put(POD_GROUPS, {"metadata": {"name": "bad", "namespace": "ns", "uid": "b"}, "spec": {"minMember": "x"}})
    case.api.put(POD_GROUPS, {"metadata": {"name": "good", "namespace": "ns", "uid": "g"}, "spec": {"minMember": 1}})
    await case.run()
    assert ("group", "good", 1) in case.core.entries
    assert "name=bad" in caplog.text
    assert case.feed.missing() == []
