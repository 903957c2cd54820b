"""Pods of no gang: beside the promises in `filter`, through the gate in `bind`, sparing gangs in `preempt`."""

import pytest

from extender import answers_filter, breaking, gate
from extender.effects import Outcome
from tests.unit.extender_objects import GPU, member, node, pod, pod_group, reservation, template
from tests.unit.extender_stage import Stage


@pytest.fixture
def stage() -> Stage:
    """Two nodes of 8 cpu and 8 GPUs; a gang holds every GPU of node a and 4 cpu there."""
    stage = Stage().add(node("a", cpu=8, gpu=8), node("b", cpu=8, gpu=8, unschedulable=True)).start()
    roles = [{"name": "worker", "count": 1, "minCount": 1, "template": template(cpu="4", gpu=8)}]
    stage.add(reservation(roles=roles))
    assert stage.status("id-job-1") == "Reserved"
    stage.add(node("b", cpu=8, gpu=8))
    return stage


class TestFilter:
    def test_beside_the_promises_per_resource(self, stage):
        assert stage.filter(pod("small", cpu="4")).node_names == ["a", "b"]
        assert stage.filter(pod("large", cpu="5")).node_names == ["b"]
        assert stage.filter(pod("gpu", gpu=1)).node_names == ["b"]

    def test_every_name_passes_where_nothing_is_promised(self):
        stage = Stage().add(node("a")).start()
        assert stage.filter(pod("any", cpu="100"), ["a", "unknown"]).node_names == ["a", "unknown"]

    def test_equal_priority_may_not_break_a_promise(self, stage):
        answer = stage.filter(pod("gpu", gpu=1), ["a"])
        assert answer.node_names == []
        assert answer.unresolvable == {"a": answers_filter.PROMISED}

    def test_higher_priority_gets_exactly_one_node_and_the_gang_moves_on(self, stage):
        urgent = pod("urgent", gpu=1, priority=10)
        assert stage.filter(urgent, ["a"]).node_names == ["a"]
        slots = stage.core._world.ledger.slots.values()
        assert [slot.node for slot in slots] == ["b"], "planned anew"
        assert stage.status("id-job-1") == "Reserved"

    def test_the_room_of_a_broken_promise_is_kept_for_the_bind(self, stage):
        urgent = pod("urgent", gpu=1, priority=10)
        stage.add(urgent)
        stage.filter(urgent, ["a"])
        rival = pod("rival", gpu=8)
        assert stage.filter(rival, ["a"]).node_names == []
        call = stage.bind(urgent, "a")
        assert stage.answers[call] == ""

    def test_that_room_is_given_back_if_no_bind_comes(self, stage):
        stage.filter(pod("urgent", gpu=1, priority=10), ["a"])
        stage.pass_time(11)
        assert stage.filter(pod("rival", gpu=8), ["a"]).node_names == ["a"]

    def test_a_daemonsets_pod_may_break_a_promise(self, stage):
        agent = pod("agent", gpu=1, owner_kind="DaemonSet")
        assert stage.filter(agent, ["a"]).node_names == ["a"]

    def test_the_cheapest_promise_breaks(self):
        # On b a call is held already; on a only a reservation without pods.
        stage = Stage().add(node("b", cpu=2)).start()
        gang = [member(f"m{i}", "g") for i in range(2)]
        stage.add(pod_group("g", 2), *gang)
        stage.schedule(gang[0])
        stage.add(node("a", cpu=2))
        roles = [{"name": "worker", "count": 2, "minCount": 2, "template": template(cpu="1")}]
        stage.add(reservation(roles=roles))
        assert stage.filter(pod("urgent", priority=10), ["a", "b"]).node_names == ["a"]

    def test_a_commit_under_way_never_breaks(self):
        stage = Stage().add(node("a", cpu=2)).start()
        stage.auto_recheck = False
        gang = [member(f"m{i}", "g") for i in range(2)]
        stage.add(pod_group("g", 2), *gang)
        for each in gang:
            stage.schedule(each)
        assert stage.states() == {"committing": 1}
        assert stage.filter(pod("urgent", priority=10)).node_names == []

    def test_the_own_nominated_node_stays_resolvable(self, stage):
        # So that it does not preempt again elsewhere while its victims end.
        answer = stage.filter(pod("gpu", gpu=1, nominated="a"), ["a"])
        assert answer.failed == {"a": answers_filter.PROMISED}

    def test_native_groups_pass_through(self, stage):
        native = pod(
            "n", gpu=8, spec={"schedulingGroup": {"podGroupName": "x"}}, labels={"scheduling.x-k8s.io/pod-group": "x"}
        )
        assert stage.filter(native).node_names == ["a", "b"]
        stage.add(native)
        assert stage.answers[stage.bind(native, "b")] == ""

    def test_a_request_does_not_make_a_pod_live_for_ever(self):
        stage = Stage().add(node("a")).start()
        sizes = stage.core.metrics().sizes
        stage.filter(member("ghost", "g"))
        stage.pass_time(31)
        assert stage.core.metrics().sizes == sizes

    def test_a_deleted_pods_late_request_brings_nothing_back(self):
        stage = Stage().add(node("a")).start()
        ghost = member("ghost", "g")
        stage.add(pod_group("g", 1), ghost)
        stage.delete(ghost)
        answer = stage.filter(ghost)
        assert answer.unresolvable == {"a": answers_filter.DELETED}
        assert stage.states() == {}


class TestGate:
    def test_a_pod_that_fits_is_posted_at_once(self):
        stage = Stage().add(node("a")).start()
        each = pod("p")
        stage.add(each)
        assert stage.answers[stage.bind(each, "a")] == ""
        assert stage.posts == [("uid-p", "a")]

    def test_a_conflict_waits_for_the_watch(self):
        stage = Stage().add(node("a", cpu=2)).start()
        old, new = pod("old", cpu="2", node="a"), pod("new", cpu="2")
        stage.add(old, new)
        call = stage.bind(new, "a")
        stage.pass_time(0.5)
        assert call not in stage.answers
        stage.delete(old)
        assert stage.answers[call] == ""

    def test_but_not_longer_than_a_second(self):
        stage = Stage().add(node("a", cpu=2)).start()
        stage.add(pod("old", cpu="2", node="a"), pod("new", cpu="2"))
        call = stage.bind(pod("new", cpu="2"), "a")
        stage.pass_time(1.1)
        assert stage.answers[call] == gate.NO_ROOM
        assert not stage.posts

    def test_a_pod_that_the_watch_has_not_shown_yet(self):
        stage = Stage().add(node("a")).start()
        each = pod("p")
        call = stage.bind(each, "a")
        assert call not in stage.answers
        stage.add(each)
        assert stage.answers[call] == ""

    def test_a_pod_that_never_shows(self):
        stage = Stage().add(node("a")).start()
        call = stage.bind(pod("p"), "a")
        stage.pass_time(1.1)
        assert stage.answers[call] == gate.UNKNOWN_POD

    def test_two_binds_never_share_room(self):
        # The second comes before the watch shows the first.
        stage = Stage().add(node("a", cpu=2)).start()
        stage.auto_post = False
        one, two = pod("one", cpu="2"), pod("two", cpu="2")
        stage.add(one, two)
        stage.bind(one, "a")
        call = stage.bind(two, "a")
        stage.pass_time(1.1)
        assert stage.answers[call] == gate.NO_ROOM
        assert stage.posts == [("uid-one", "a")]

    def test_a_bind_repeated_after_success(self):
        stage = Stage().add(node("a"), node("b")).start()
        each = pod("p")
        stage.add(each)
        stage.bind(each, "a")
        assert stage.answers[stage.bind(each, "a")] == ""
        assert stage.answers[stage.bind(each, "b")] == gate.ELSEWHERE
        assert len(stage.posts) == 1

    def test_no_answer_to_a_post_keeps_the_room_until_it_is_settled(self):
        stage = Stage().add(node("a", cpu=2)).start()
        stage.refuse_posts["uid-p"] = [Outcome.UNKNOWN] * 100
        each = pod("p", cpu="2")
        stage.add(each)
        call = stage.bind(each, "a")
        stage.pass_time(10)
        assert stage.answers[call] == gate.IN_DOUBT
        assert stage.core.metrics().charges == 1
        assert stage.filter(each).node_names == ["a"], "no other node meanwhile"
        stage.pass_time(60)
        assert stage.core.metrics().charges == 0

    def test_the_doubt_ends_with_the_watch(self):
        stage = Stage().add(node("a", cpu=2)).start()
        stage.refuse_posts["uid-p"] = [Outcome.UNKNOWN] * 100
        each = pod("p", cpu="2")
        stage.add(each)
        stage.bind(each, "a")
        stage.pass_time(10)
        stage.add(pod("p", cpu="2", node="a"))
        stage.pass_time(100)
        assert stage.core.metrics().charges == 1
        assert stage.core.metrics().sizes["doubts"] == 0

    def test_a_refused_post_frees_the_room(self):
        stage = Stage().add(node("a", cpu=2)).start()
        stage.refuse_posts["uid-p"] = [Outcome.CONFLICT]
        each = pod("p", cpu="2")
        stage.add(each)
        call = stage.bind(each, "a")
        assert stage.answers[call].startswith(gate.NOT_BOUND)
        assert stage.core.metrics().charges == 0

    def test_a_deleted_pods_call_is_answered(self):
        stage = Stage().add(node("a", cpu=2), pod("old", cpu="2", node="a")).start()
        each = pod("p", cpu="2")
        stage.add(each)
        call = stage.bind(each, "a")
        stage.delete(each)
        assert stage.answers[call]
        assert stage.core.metrics().sizes["gate"] == 0

    def test_a_namesake_with_a_new_uid_is_another_pod(self):
        stage = Stage().add(node("a", cpu=2)).start()
        old, new = pod("p", uid="u1", cpu="2", node="a"), pod("p", uid="u2", cpu="2")
        stage.add(old, new)
        assert stage.core.metrics().charges == 0, "the name is taken by the new one: the old one is gone"
        stage.add(old)
        assert stage.core.metrics().charges == 0, "a late event of the old one"


class TestPreempt:
    def test_a_gang_evicts_nobody(self, stage):
        # A9.
        stage.add(pod_group("g", 1), member("m", "g", gpu=8))
        assert stage.core.preempt(member("m", "g", gpu=8), {"b": (["x"], 0)}, stage.now) == {}

    def test_candidates_that_filter_would_refuse_are_dropped(self, stage):
        # Node a's GPUs are promised to a gang of equal priority: evicting its cpu pods there helps nobody.
        stage.add(pod("va", cpu="4", node="a"), pod("vb", cpu="8", gpu=8, node="b"))
        answer = stage.core.preempt(pod("p", gpu=1), {"a": (["uid-va"], 0), "b": (["uid-vb"], 1)}, stage.now)
        assert answer == {"b": (["uid-vb"], 1)}

    def test_gangs_are_spared_while_another_candidate_is_left(self):
        stage = Stage().add(node("a", cpu=1), node("b", cpu=1)).start()
        stage.add(member("m", "g", node="a"), pod("plain", node="b"))
        victims = {"a": (["uid-m"], 0), "b": (["uid-plain"], 0)}
        assert stage.core.preempt(pod("p", priority=5), victims, stage.now) == {"b": (["uid-plain"], 0)}
        only = {"a": (["uid-m"], 0)}
        assert stage.core.preempt(pod("p", priority=5), only, stage.now) == only

    @pytest.mark.parametrize("uids", [[], ["uid-unknown"]])
    def test_victim_lists_may_be_empty_or_strange(self, stage, uids):
        assert stage.core.preempt(pod("p", cpu="1"), {"b": (uids, 0)}, stage.now) == {"b": (uids, 0)}


class TestPriorities:
    def test_a_gang_of_higher_priority_takes_uncommitted_slots(self):
        stage = Stage().add(node("a", cpu=4)).start()
        low = [member(f"low-{i}", "low", priority=1) for i in range(4)]
        high = [member(f"high-{i}", "high", priority=9) for i in range(4)]
        stage.add(pod_group("low", 4), pod_group("high", 4), *low, *high)
        where = stage.node_for(low[0])
        assert where == "a"
        call = stage.bind(low[0], where)
        for each in high:
            assert isinstance(stage.schedule(each), int)
        assert {name.split("-")[0] for name in stage.bound()} == {"high"}
        assert stage.answers[call] == breaking.TAKEN
        assert stage.states() == {"landed": 1, "blocked": 1}

    def test_nominated_pods_of_at_least_its_priority_count_for_a_gang(self):
        stage = Stage().add(node("a", cpu=4)).start()
        stage.add(pod("waits", cpu="2", nominated="a", priority=5))
        gang = [member(f"m{i}", "g", priority=5) for i in range(4)]
        stage.add(pod_group("g", 4), *gang)
        assert isinstance(stage.schedule(gang[0]), str)
        urgent = [member(f"u{i}", "u", priority=6) for i in range(4)]
        stage.add(pod_group("u", 4), *urgent)
        assert isinstance(stage.schedule(urgent[0]), int)


def test_the_report_counts_promises_and_says_whose(stage):
    report = stage.core.report()
    assert report.total == {"cpu": "16", "memory": "64Gi", GPU: "16", "pods": "220"}
    assert report.reserved == {"cpu": "4", "memory": "1Gi", GPU: "8", "pods": "1"}
    assert report.free == {"cpu": "12", "memory": "63Gi", GPU: "8", "pods": "219"}
    assert [(each.job_id, each.epoch) for each in report.includes] == [("id-job", 1)]
    assert report.nodes == 2
    assert report.scheduler_name == "muster"
    assert sum(shape.nodes for shape in report.shapes) == 2
    assert report.shapes_left_out == 0


def test_the_report_no_longer_includes_what_was_refused(stage):
    stage.pass_time(61)
    assert stage.core.report().includes == []
    assert stage.core.report().reserved == {}
