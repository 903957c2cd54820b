"""Another scheduler binds pods onto the same nodes (the managed install): promises give way, collisions are counted."""

import pytest

from extender.effects import Recheck
from kube.objects.pods import Pod
from tests.unit.extender_objects import member, node, pod, pod_group, reservation, template
from tests.unit.extender_stage import Stage


def gang_at_the_barrier(*nodes) -> tuple[Stage, list[Pod]]:
    """Two of three members of 3 CPUs are held; the third has not been asked about yet."""
    stage = Stage().add(*(node(name, cpu=4) for name in nodes)).start()
    gang = [member(f"m{i}", "g", cpu="3") for i in range(3)]
    stage.add(pod_group("g", 3), *gang)
    for each in gang[:2]:
        stage.schedule(each)
    assert len(stage.held()) == 2
    return stage, gang


def collisions(stage: Stage) -> int:
    return stage.core.metrics().overcommitted_by_others


@pytest.mark.parametrize("when", ["before the last member", "after the commit was decided"])
def test_room_that_another_scheduler_took_before_a_commit_is_not_given_again(when):
    stage, gang = gang_at_the_barrier("a", "b", "c", "d")
    taken = stage.node_for(gang[0]) or ""
    intruder = pod("intruder", cpu="2", node=taken)
    if when == "before the last member":
        stage.add(intruder)
        stage.schedule(gang[2])
    else:
        stage.auto_recheck = False
        stage.schedule(gang[2])
        (recheck,) = [effect for effect in stage.effects if isinstance(effect, Recheck)]
        assert taken in recheck.nodes
        stage.auto_recheck = True
        stage.add(intruder)  # as the live look at the node's pods, or the watch, shows it
        stage.perform(stage.core.recheck_done(recheck.gang, recheck.token, "", stage.now))
    assert stage.posts == [], "whoever was planned there has to come again"
    for each in gang:
        stage.schedule(each)
    assert sorted(stage.bound()) == ["intruder", "m0", "m1", "m2"]
    assert sorted(stage.bound().values()) == ["a", "b", "c", "d"]
    assert collisions(stage) == 0


def test_without_other_room_the_gang_waits_and_holds_nothing():
    stage, gang = gang_at_the_barrier("a", "b", "c")
    intruder = pod("intruder", cpu="2", node="b")
    stage.add(intruder)
    assert stage.schedule(gang[2]) != ""
    assert stage.posts == []
    assert stage.held() == set()
    assert stage.core.metrics().slots == 0
    stage.delete(intruder)
    stage.pass_time(1)
    for each in gang:
        stage.schedule(each)
    assert sorted(stage.bound().values()) == ["a", "b", "c"]


def test_a_promise_without_other_room_is_refused():
    stage = Stage().add(node("a", cpu=4), node("b", cpu=4)).start()
    roles = [{"name": "worker", "count": 2, "minCount": 2, "template": template(cpu="3")}]
    stage.add(reservation(roles=roles))
    stage.add(pod("intruder", cpu="2", node="a"))
    assert stage.status("id-job-1") == "Refused PromiseBroken"


class TestCollisions:
    def test_of_a_pod_of_another_scheduler_with_a_binding_of_ours_on_its_way(self):
        stage = Stage(auto_post=False).add(node("a", cpu=4)).start()
        ours = pod("ours", cpu="3")
        stage.add(ours)
        stage.schedule(ours)
        stage.add(pod("theirs", cpu="2", node="a"))
        assert collisions(stage) == 1
        stage.post("ours", "a")
        assert collisions(stage) == 1

    def test_of_a_pod_of_another_scheduler_onto_a_node_that_is_full(self):
        stage = Stage().add(node("a", cpu=4), pod("first", cpu="3", node="a")).start()
        stage.add(pod("theirs", cpu="2", node="a"))
        assert collisions(stage) == 1
        stage.finish(pod("theirs", cpu="2", node="a"))
        assert collisions(stage) == 1, "news of a pod that was counted is no other collision"

    def test_none_of_pods_that_fit_beside_what_runs_even_if_a_promise_breaks(self):
        stage = Stage().add(node("a", cpu=4)).start()
        roles = [{"name": "worker", "count": 1, "minCount": 1, "template": template(cpu="3")}]
        stage.add(reservation(roles=roles))
        stage.add(pod("theirs", cpu="2", node="a"))
        assert collisions(stage) == 0

    def test_none_of_our_own_pods_when_their_node_shrinks(self):
        stage = Stage().add(node("a", cpu=4)).start()
        ours = pod("ours", cpu="3")
        stage.add(ours)
        stage.schedule(ours)
        stage.add(node("a", cpu=2), pod("ours", cpu="3", node="a", phase="Running"))
        assert collisions(stage) == 0

    def test_none_of_what_was_there_before_this_process_decided(self):
        stage = Stage().add(node("a", cpu=4), pod("one", cpu="3", node="a"), pod("two", cpu="3", node="a")).start()
        assert collisions(stage) == 0
