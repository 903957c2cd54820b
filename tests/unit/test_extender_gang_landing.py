"""A user's gang from its first pod to the last Binding: filter, barrier, commit, heal, evict."""

import pytest

from extender import barrier, life
from extender.effects import Outcome, PostBindings, Recheck
from kube.objects.pods import PodCondition
from tests.unit.extender_objects import member, node, pod, pod_group
from tests.unit.extender_stage import Stage, copy


def gang(count: int = 3, group: str = "train", **kwargs):
    return [member(f"{group}-{i}", group, **kwargs) for i in range(count)]


@pytest.fixture
def stage() -> Stage:
    return Stage().add(node("a", cpu=4), node("b", cpu=4)).start()


class TestLanding:
    def test_nothing_is_posted_before_the_whole_gang_waits(self, stage):
        # A2.
        pods = gang(3)
        stage.add(pod_group(minimum=3), *pods)
        calls = [stage.schedule(pods[0]), stage.schedule(pods[1])]
        assert stage.held() == set(calls)
        assert not stage.of(PostBindings)
        assert stage.states() == {"waiting": 1}
        last = stage.schedule(pods[2])
        assert stage.answers == {**dict.fromkeys(calls, ""), last: ""}
        assert set(stage.bound()) == {"train-0", "train-1", "train-2"}
        assert stage.states() == {"landed": 1}

    def test_one_write_per_pod_and_one_recheck_per_gang(self, stage):
        pods = gang(3)
        stage.add(pod_group(minimum=3), *pods)
        for each in pods:
            stage.schedule(each)
        assert len(stage.of(Recheck)) == 1
        assert [len(effect.bindings) for effect in stage.of(PostBindings)] == [3]

    def test_every_member_is_answered_with_exactly_one_node(self, stage):
        pods = gang(8)
        stage.add(pod_group(minimum=8), *pods)
        nodes = [stage.node_for(each) for each in pods]
        assert sorted(nodes) == ["a"] * 4 + ["b"] * 4

    def test_filter_is_idempotent_per_uid(self, stage):
        pods = gang(3)
        stage.add(pod_group(minimum=3), *pods)
        assert stage.node_for(pods[0]) == stage.node_for(pods[0])
        assert stage.core.metrics().slots == 3

    def test_a_gang_that_does_not_fit_holds_nothing_and_says_why(self, stage):
        pods = gang(9)
        stage.add(pod_group(minimum=9), *pods)
        assert [stage.schedule(each) for each in pods] == [life.NO_ROOM] * 9
        assert stage.core.metrics().slots == 0
        assert [event.message for event in stage.events] == ["largest fit 8 of 9 pods: 1 short of cpu"]

    def test_refusals_are_one_entry_and_cheap(self, stage):
        pods = gang(9)
        stage.add(pod_group(minimum=9), *pods)
        answer = stage.filter(pods[0])
        assert answer.node_names == []
        assert answer.failed == {}
        assert answer.unresolvable == {"a": life.NO_ROOM}

    def test_two_gangs_that_fit_one_at_a_time(self, stage):
        # A1: interleaved one by one; exactly one lands, the other holds nothing at any moment.
        one, two = gang(5, "one"), gang(5, "two")
        stage.add(pod_group("one", 5), pod_group("two", 5), *one, *two)
        for first, second in zip(one, two, strict=True):
            assert isinstance(stage.schedule(first), int)
            assert stage.schedule(second) == life.NO_ROOM
        assert {name.split("-")[0] for name in stage.bound()} == {"one"}
        for each in one:
            stage.delete(each)
        stage.pass_time(1.0)
        assert sorted(stage.woken) == [each.metadata.name for each in two]
        for each in two:
            stage.schedule(each)
        assert len(stage.bound()) == 5

    def test_extra_members_land_with_the_rest_or_later(self, stage):
        pods = gang(4)
        stage.add(pod_group(minimum=3), *pods)
        for each in pods[:3]:
            stage.schedule(each)
        assert len(stage.bound()) == 3
        stage.schedule(pods[3])
        assert len(stage.bound()) == 4

    def test_members_without_a_pod_group_wait_for_it(self, stage):
        pods = gang(2)
        stage.add(*pods)
        assert stage.schedule(pods[0]) == "the PodGroup of this pod does not exist"
        stage.add(pod_group(minimum=2))
        stage.pass_time(1.0)
        for each in pods:
            stage.schedule(each)
        assert len(stage.bound()) == 2

    def test_ack_labels_need_no_object(self, stage):
        labels = {
            "pod-group.scheduling.sigs.k8s.io/name": "ack",
            "pod-group.scheduling.sigs.k8s.io/min-available": "2",
        }
        pods = [pod(f"ack-{i}", labels=labels) for i in range(2)]
        stage.add(*pods)
        first = stage.schedule(pods[0])
        assert stage.held() == {first}
        stage.schedule(pods[1])
        assert len(stage.bound()) == 2


class TestAssembling:
    def test_slow_creation_passes_the_barrier_together(self, stage):
        # A7: one pod per second, all within five seconds of the first.
        pods = gang(4)
        stage.add(pod_group(minimum=4))
        for each in pods:
            stage.add(each)
            assert isinstance(stage.schedule(each), int)
            stage.pass_time(1.0)
        assert len(stage.bound()) == 4

    def test_room_for_unseen_members_is_held_five_seconds(self, stage):
        pods = gang(4)
        stage.add(pod_group(minimum=4), pods[0])
        call = stage.schedule(pods[0])
        assert stage.core.metrics().slots == 4
        stage.pass_time(4.9)
        assert call not in stage.answers
        stage.pass_time(0.2)
        assert stage.answers[call]
        assert stage.core.metrics().slots == 0
        assert stage.states() == {"incomplete": 1}

    def test_after_a_failed_assembling_only_a_new_member_brings_another_try(self, stage):
        pods = gang(4)
        stage.add(pod_group(minimum=4), pods[0])
        stage.schedule(pods[0])
        stage.pass_time(6)
        assert stage.schedule(pods[0]) == life.TOO_FEW
        assert stage.core.metrics().slots == 0
        stage.add(pods[1])
        assert isinstance(stage.schedule(pods[1]), int)
        stage.pass_time(0.5)
        assert stage.woken == ["train-0"]

    def test_the_last_member_wakes_those_refused(self, stage):
        pods = gang(4)
        stage.add(pod_group(minimum=4), pods[0])
        stage.schedule(pods[0])
        stage.pass_time(60)
        assert stage.schedule(pods[0]) == life.TOO_FEW
        stage.add(*pods[1:])
        stage.pass_time(1.0)
        assert stage.woken == ["train-0"]
        for each in pods:
            stage.schedule(each)
        assert len(stage.bound()) == 4


class TestHolding:
    def test_all_are_released_together_at_the_schedule_timeout(self, stage):
        # A5: the third member exists and is never let through by other filters.
        pods = gang(3)
        stage.add(pod_group(minimum=3, timeout=20), *pods)
        calls = [stage.schedule(pods[0]), stage.schedule(pods[1])]
        stage.pass_time(19.5)
        assert stage.held() == set(calls)
        stage.pass_time(1.0)
        assert not stage.held()
        assert stage.core.metrics().slots == 0

    def test_longer_holds_go_in_rounds_and_keep_the_slots(self, stage):
        pods = gang(3)
        stage.add(pod_group(minimum=3, timeout=300), *pods)
        stage.schedule(pods[0])
        stage.schedule(pods[1])
        stage.pass_time(74)
        assert not stage.held(), "answered before kube-scheduler's own timeout"
        assert stage.core.metrics().slots == 3
        for each in pods:
            stage.schedule(each)
        assert len(stage.bound()) == 3

    def test_members_still_in_the_queue_of_a_busy_scheduler_get_more_time(self, stage):
        pods = gang(3)
        stage.add(pod_group(minimum=3, timeout=1), *pods)
        stage.schedule(pods[0])
        for _ in range(10):
            stage.pass_time(0.5)
            stage.filter(member("other", "elsewhere"))
        stage.schedule(pods[1])
        stage.schedule(pods[2])
        assert len(stage.bound()) == 3

    @pytest.mark.parametrize(
        ("scheduler", "waits"),
        [("default-scheduler", True), ("somebody-elses", False)],
        ids=["in-the-queue", "nobodys"],
    )
    @pytest.mark.parametrize("pause", [0.5, 2.0], ids=["busy", "backing-off"])
    def test_a_member_whose_turn_has_not_come_gets_more_time(self, stage, scheduler, waits, pause):
        # A5: kube-scheduler is at work, with at most its longest back-off between two questions. A first try that
        # ended in an error (no extender led) says nothing about room.
        pods = gang(3)
        for each in pods:
            each.spec.scheduler_name = "default-scheduler"
        pods[2].spec.scheduler_name = scheduler
        pods[2].status.conditions = [PodCondition(type="PodScheduled", status="False", reason="SchedulerError")]
        stage.add(pod_group(minimum=3, timeout=10), *pods)
        calls = [stage.schedule(pods[0]), stage.schedule(pods[1])]
        for _ in range(int(10.5 / pause) + 1):
            stage.pass_time(pause)
            stage.filter(member("other", "elsewhere"))
        assert stage.held() == (set(calls) if waits else set())

    def test_a_bind_call_that_is_on_its_way_is_waited_for(self, stage):
        # A5: the last member's filter was answered just before the time is over.
        pods = gang(3)
        stage.add(pod_group(minimum=3, timeout=10), *pods)
        calls = {stage.schedule(pods[0]), stage.schedule(pods[1])}
        stage.pass_time(9.9)
        node = stage.node_for(pods[2])
        stage.pass_time(0.5)
        assert stage.held() == calls
        stage.bind(pods[2], node)
        assert len(stage.bound()) == 3

    def test_a_bind_call_that_never_comes_is_not_waited_for(self, stage):
        pods = gang(3)
        stage.add(pod_group(minimum=3, timeout=10), *pods)
        stage.schedule(pods[0])
        stage.schedule(pods[1])
        stage.pass_time(9.9)
        stage.node_for(pods[2])
        stage.pass_time(2)
        assert not stage.held()

    def test_a_member_that_other_filters_keep_back_gets_no_more_time(self, stage):
        # A5: its nodeSelector matches nothing, kube-scheduler never asks about it, and is busy with other pods.
        pods = gang(3)
        stage.add(pod_group(minimum=3, timeout=10), *pods)
        stuck = copy(pods[2])
        stuck.status.conditions = [PodCondition(type="PodScheduled", status="False", reason="Unschedulable")]
        stage.add(stuck)
        calls = [stage.schedule(pods[0]), stage.schedule(pods[1])]
        for _ in range(21):
            stage.pass_time(0.5)
            stage.filter(member("other", "elsewhere"))
        assert not stage.held()
        assert all(stage.answers[call] for call in calls)
        assert stage.core.metrics().slots == 0

    def test_a_wait_shorter_than_the_schedulers_retries_still_converges(self, stage):
        # scheduleTimeoutSeconds 1, each failed pod comes back after one to two seconds, never two in the same moment.
        pods = gang(4)
        stage.add(pod_group(minimum=4, timeout=1), *pods)
        due = dict.fromkeys(range(4), 0.0)
        calls: dict[int, int] = {}
        for step in range(400):
            index = step % 4
            if index not in calls and due[index] <= stage.now and pods[index].metadata.name not in stage.bound():
                outcome = stage.schedule(pods[index])
                if isinstance(outcome, int):
                    calls[index] = outcome
                else:
                    due[index] = stage.now + 1 + index * 0.3
            stage.pass_time(0.1)
            for failed in [each for each, call in calls.items() if stage.answers.get(call)]:
                del calls[failed]
                due[failed] = stage.now + 1 + failed * 0.3
        assert len(stage.bound()) == 4

    def test_a_deleted_member_frees_its_place_at_once(self, stage):
        pods = gang(3)
        stage.add(pod_group(minimum=3), *pods)
        call = stage.schedule(pods[0])
        stage.delete(pods[0])
        assert stage.answers[call]

    def test_a_newer_call_for_the_same_pod_wins(self, stage):
        pods = gang(3)
        stage.add(pod_group(minimum=3), *pods)
        older = stage.schedule(pods[0])
        newer = stage.schedule(pods[0])
        assert stage.answers == {older: barrier.NEWER_CALL}
        stage.schedule(pods[1])
        stage.schedule(pods[2])
        assert stage.answers[newer] == ""

    def test_a_client_that_goes_away_waits_no_longer(self, stage):
        pods = gang(2)
        stage.add(pod_group(minimum=2), *pods)
        call = stage.schedule(pods[0])
        stage.perform(stage.core.bind_abandoned(call, stage.now))
        stage.schedule(pods[1])
        assert not stage.bound()
        stage.schedule(pods[0])
        assert len(stage.bound()) == 2


class TestCommit:
    def test_bind_again_for_a_bound_pod(self, stage):
        # A4.
        pods = gang(2)
        stage.add(pod_group(minimum=2), *pods)
        for each in pods:
            stage.schedule(each)
        where = stage.bound()["train-0"]
        posts = list(stage.posts)
        assert stage.answers[stage.bind(pods[0], where)] == ""
        other = "b" if where == "a" else "a"
        assert stage.answers[stage.bind(pods[0], other)] == barrier.ELSEWHERE
        assert stage.posts == posts

    def test_a_failed_post_is_retried_inside_the_call(self, stage):
        # A3.
        pods = gang(3)
        stage.refuse_posts["uid-train-1"] = [Outcome.REJECTED, Outcome.UNKNOWN]
        stage.add(pod_group(minimum=3), *pods)
        calls = [stage.schedule(each) for each in pods]
        assert stage.held() == {calls[1]}
        assert len(stage.bound()) == 2
        stage.pass_time(2)
        assert len(stage.bound()) == 3
        assert not stage.held()

    def test_one_members_retries_hold_up_no_other(self, stage):
        # Two Bindings fail; one member's call is given up by its client and comes anew while the other still retries.
        pods = gang(3)
        for index in (1, 2):
            stage.refuse_posts[f"uid-train-{index}"] = [Outcome.REJECTED] * 1000
        stage.add(pod_group(minimum=3), *pods)
        calls = [stage.schedule(each) for each in pods]
        stage.pass_time(1)
        stage.perform(stage.core.bind_abandoned(calls[2], stage.now))
        del stage.refuse_posts["uid-train-2"]
        again = stage.schedule(pods[2])
        assert stage.answers[again] == ""
        assert set(stage.bound()) == {"train-0", "train-2"}

    def test_a_pod_group_deleted_under_a_running_gang_ends_nothing(self, stage):
        # The training operator deletes it when the job ends, and rewrites it meanwhile.
        pods = gang(3)
        stage.add(pod_group(minimum=2), *pods)
        for each in pods[:2]:
            stage.schedule(each)
        stage.perform(stage.core.pod_group_deleted("default", "train", stage.now))
        assert stage.states() == {"landed": 1}
        stage.pass_time(2000)
        assert not stage.evicted
        assert stage.core.metrics().slots == 0

    def test_without_a_minimum_all_pods_it_has_are_the_gang(self, stage):
        pods = gang(3)
        stage.add(pod_group(minimum=0), *pods)
        stage.schedule(pods[0])
        assert not stage.bound()
        for each in pods[1:]:
            stage.schedule(each)
        assert len(stage.bound()) == 3

    def test_without_a_minimum_later_members_do_not_make_it_a_half_gang(self, stage):
        pods = gang(3)
        stage.add(pod_group(minimum=0), *pods)
        for each in pods:
            stage.schedule(each)
        stage.add(member("train-9", cpu="64"))
        assert stage.states() == {"landed": 1}
        stage.pass_time(2000)
        assert not stage.evicted

    def test_without_a_minimum_a_restart_judges_nobody(self):
        stage = Stage().add(node("a", cpu=2), pod_group(minimum=0))
        stage.add(member("m0", node="a"), member("m1", cpu="64")).start()
        stage.pass_time(2000)
        assert not stage.evicted

    def test_a_binding_without_answer_that_landed_is_success(self, stage):
        pods = gang(2)
        stage.refuse_posts["uid-train-0"] = [Outcome.UNKNOWN, Outcome.ALREADY_THERE]
        stage.add(pod_group(minimum=2), *pods)
        calls = [stage.schedule(each) for each in pods]
        stage.pass_time(1)
        assert stage.answers == dict.fromkeys(calls, "")

    def test_a_binding_in_doubt_keeps_its_room_and_its_node(self, stage):
        pods = gang(8)
        stage.refuse_posts["uid-train-0"] = [Outcome.UNKNOWN] * 1000
        stage.add(pod_group(minimum=8), *pods)
        calls = [stage.schedule(each) for each in pods]
        stage.pass_time(75)
        assert stage.answers[calls[0]] == barrier.IN_DOUBT
        (where,) = {to for uid, to in stage.posts if uid == "uid-train-0"}
        assert stage.filter(pod("thief"), [where]).node_names == []
        assert stage.node_for(pods[0]) == where
        assert stage.answers[stage.bind(pods[0], "b" if where == "a" else "a")] == barrier.IN_DOUBT
        del stage.refuse_posts["uid-train-0"]
        assert stage.answers[stage.bind(pods[0], where)] == ""

    def test_a_gang_that_cannot_be_healed_is_evicted_whole(self, stage):
        pods = gang(3)
        stage.refuse_posts["uid-train-1"] = [Outcome.REJECTED] * 1000
        stage.add(pod_group(minimum=3), *pods)
        for each in pods:
            stage.schedule(each)
        stage.pass_time(80)
        assert stage.states() == {"healing": 1}
        assert stage.core.metrics().slots == 1, "its place stays reserved"
        stage.pass_time(60)
        assert stage.states() == {"evicting": 1}
        assert set(stage.evicted) == {"train-0", "train-2"}
        assert stage.events[-1].reason == "GangEvicted"
        for each in pods:
            stage.delete(each)
        assert stage.states() == {}

    def test_nothing_bound_means_everybody_fails_and_tries_again(self, stage):
        pods = gang(2)
        for each in pods:
            stage.refuse_posts[each.metadata.uid] = [Outcome.NOT_SENT] * 1000
        stage.add(pod_group(minimum=2), *pods)
        calls = [stage.schedule(each) for each in pods]
        stage.pass_time(75)
        assert all(stage.answers[call] for call in calls)
        assert stage.states() in ({"planned": 1}, {"incomplete": 1})
        stage.refuse_posts.clear()
        for each in pods:
            stage.schedule(each)
        assert len(stage.bound()) == 2

    def test_a_failed_recheck_posts_nothing(self, stage):
        stage.auto_recheck = False
        pods = gang(2)
        stage.add(pod_group(minimum=2), *pods)
        calls = [stage.schedule(each) for each in pods]
        (recheck,) = stage.of(Recheck)
        stage.perform(stage.core.recheck_done(recheck.gang, recheck.token, "timeout", stage.now))
        assert not stage.posts
        assert all("timeout" in stage.answers[call] for call in calls)

    def test_the_minimum_is_read_again_before_the_commit(self, stage):
        stage.auto_recheck = False
        pods = gang(2)
        stage.add(pod_group(minimum=2), *pods)
        for each in pods:
            stage.schedule(each)
        (recheck,) = stage.of(Recheck)
        stage.add(pod_group(minimum=3))
        stage.perform(stage.core.recheck_done(recheck.gang, recheck.token, "", stage.now))
        assert not stage.posts
        assert len(stage.held()) == 2

    def test_a_node_lost_during_the_recheck(self, stage):
        stage.auto_recheck = False
        pods = gang(2, cpu="3")
        stage.add(pod_group(minimum=2), *pods)
        for each in pods:
            stage.schedule(each)
        (recheck,) = stage.of(Recheck)
        stage.lose_node("a")
        stage.perform(stage.core.recheck_done(recheck.gang, recheck.token, "", stage.now))
        assert not stage.posts

    def test_a_late_recheck_is_ignored(self, stage):
        stage.auto_recheck = False
        pods = gang(2)
        stage.add(pod_group(minimum=2), *pods)
        calls = [stage.schedule(each) for each in pods]
        (recheck,) = stage.of(Recheck)
        stage.pass_time(75)
        assert set(stage.answers) == set(calls)
        stage.perform(stage.core.recheck_done(recheck.gang, recheck.token, "", stage.now))
        assert not stage.posts


class TestAfterLanding:
    def land(self, stage, count=3, minimum=3):
        pods = gang(count)
        stage.add(pod_group(minimum=minimum), *pods)
        for each in pods:
            stage.schedule(each)
        assert len(stage.bound()) == count
        return pods

    def test_a_lost_member_gets_its_place_back_first(self, stage):
        # A6: the cluster is full but for the freed place; another pod of equal priority asks first.
        pods = self.land(stage, 8, 8)
        where = stage.bound()["train-3"]
        stage.delete(pods[3])
        assert stage.filter(pod("later"), [where]).node_names == [], "kube-scheduler offers the freed node alone"
        again = member("train-3", uid="uid-again")
        stage.add(again)
        assert stage.node_for(again) == where
        stage.bind(again, where)
        assert len(stage.bound()) == 8
        assert stage.states() == {"landed": 1}

    def test_the_place_is_not_kept_for_ever(self, stage):
        pods = self.land(stage, 8, 8)
        stage.delete(pods[3])
        stage.pass_time(61)
        assert stage.core.metrics().slots == 0

    def test_below_its_minimum_for_too_long_it_goes_as_a_whole(self, stage):
        pods = self.land(stage)
        stage.delete(pods[0])
        stage.pass_time(599)
        assert not stage.evicted
        stage.pass_time(2)
        assert set(stage.evicted) == {"train-1", "train-2"}

    def test_finished_members_count_as_served(self, stage):
        pods = self.land(stage)
        stage.finish(pods[0])
        assert stage.states() == {"landed": 1}
        stage.pass_time(700)
        assert not stage.evicted

    def test_succeeded_members_stay_served_when_their_pods_are_cleaned_up(self, stage):
        pods = self.land(stage)
        for each in pods[:2]:
            stage.finish(each)
            stage.delete(each)
        assert stage.states() == {"landed": 1}
        stage.pass_time(2000)
        assert not stage.evicted

    def test_a_restart_evicts_nobody_for_what_it_has_not_seen(self):
        # Two of three run; the third ended and was cleaned up before this process started.
        stage = Stage().add(node("a"), pod_group(minimum=3), member("m0", node="a"), member("m1", node="a")).start()
        stage.pass_time(2000)
        assert not stage.evicted

    def test_a_half_commit_found_at_a_restart_is_finished_or_undone(self):
        stage = Stage().add(node("a", cpu=4), pod_group(minimum=3), member("m0", node="a"), member("m1", node="a"))
        third = member("m2")
        stage.add(third).start()
        assert stage.states() == {"healing": 1}
        assert stage.core.metrics().slots == 1
        stage.pass_time(121)
        assert set(stage.evicted) == {"m0", "m1"}

    def test_nothing_outlives_the_gang(self, stage):
        # A14, invariant 8.
        before = stage.core.metrics().sizes
        for round_ in range(20):
            pods = gang(3, f"g{round_}")
            stage.add(pod_group(f"g{round_}", 3), *pods)
            for each in pods:
                stage.schedule(each)
            for each in pods:
                stage.delete(each)
            stage.perform(stage.core.pod_group_deleted("default", f"g{round_}", stage.now))
        stage.pass_time(1000)
        assert stage.core.metrics().sizes == before
