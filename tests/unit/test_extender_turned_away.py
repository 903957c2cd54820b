"""Where no node passes kube-scheduler's own filters, `filter` is never called: the gang waits for room all the same."""

from extender.config import CoreConfig
from kube.objects.pods import Pod, PodCondition
from tests.unit.extender_objects import member, node, pod, pod_group
from tests.unit.extender_stage import Stage, copy


def turned_away(each: Pod, message: str = "0/2 nodes are available: 2 Insufficient cpu.") -> Pod:
    """The pod after kube-scheduler has found no node by itself."""
    changed: Pod = copy(each)
    changed.status.conditions = [
        PodCondition(type="PodScheduled", status="False", reason="Unschedulable", message=message)
    ]
    return changed


def full_cluster(config: CoreConfig | None = None) -> tuple[Stage, list[Pod], list[Pod]]:
    """Two nodes of 4 CPUs, four pods of 1 CPU on each, and a gang of two whole nodes that nobody asks about."""
    stage = Stage(config or CoreConfig(takeover_grace=0.0))
    stage.add(node("a", cpu=4), node("b", cpu=4)).start()
    small = [pod(f"small-{name}-{i}", cpu="1", node=name) for name in "ab" for i in range(4)]
    gang = [member(f"m{i}", cpu="4") for i in range(2)]
    stage.add(*small, pod_group("train", 2), *gang)
    return stage, small, gang


def test_it_is_blocked_and_says_why() -> None:
    stage, _, gang = full_cluster()
    assert stage.states() == {"incomplete": 1}
    stage.add(*(turned_away(each) for each in gang))
    assert stage.states() == {"blocked": 1}
    assert [event.message for event in stage.events] == ["largest fit 0 of 2 pods: 2 short of cpu"]


def test_it_gets_its_turn_to_claim_nodes() -> None:
    """After the wait no further small pod is let onto its nodes; when those there have ended, it lands."""
    stage, small, gang = full_cluster(CoreConfig(takeover_grace=0.0, claim_after=5.0, claim_again=1.0))
    stage.add(*(turned_away(each) for each in gang))
    stage.pass_time(6)
    stage.finish(small[0])
    late = pod("late", cpu="1")
    stage.add(late)
    assert stage.filter(late, ["a"]).node_names == []
    for each in small[1:]:
        stage.finish(each)
    stage.pass_time(1)
    for each in gang:
        stage.schedule(each)
    assert stage.bound() == {**stage.bound(), "m0": "a", "m1": "b"}


def test_it_holds_no_room_before_it_is_asked_about() -> None:
    """What keeps it back may be something that is not modelled here."""
    stage, small, gang = full_cluster()
    stage.add(*(turned_away(each) for each in gang))
    for each in small:
        stage.finish(each)
    stage.pass_time(1)
    assert stage.core.metrics().slots == 0
    other = pod("other", cpu="4")
    stage.add(other)
    assert stage.filter(other).node_names == ["a", "b"]


def test_an_error_is_no_verdict_on_room() -> None:
    stage, _, gang = full_cluster()
    for each in gang:
        changed = turned_away(each)
        assert changed.status.conditions is not None
        changed.status.conditions[0].reason = "SchedulerError"
        stage.add(changed)
    assert stage.states() == {"incomplete": 1}


def test_asked_about_after_all_it_is_planned_on_what_is_there_now() -> None:
    """That it would fit was seen without a plan: the plan is made when `filter` comes."""
    stage, small, gang = full_cluster()
    stage.add(*(turned_away(each) for each in gang))
    for each in small:
        stage.finish(each)
    stage.pass_time(1)
    assert stage.node_for(gang[0]) == "a"
    assert stage.states() == {"planned": 1}
    assert stage.core.metrics().slots == 2
