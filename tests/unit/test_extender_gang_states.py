"""The table of a gang's life, and the counts that decide on it."""

import itertools
import random

import pytest

from extender.effects import PodRef
from extender.gangs import HOLDS_ROOM, TRANSITIONS, Gang, Happening, Member, Role, Standing, State
from extender.timers import Timer, Timers
from tests.unit.extender_objects import class_of, member, node, pod_group
from tests.unit.extender_stage import Stage


def test_every_state_is_reached_and_left():
    reached = set(TRANSITIONS.values())
    assert reached == set(State)
    assert {before for before, _ in TRANSITIONS} == set(State)


@pytest.mark.parametrize(("state", "happening"), list(itertools.product(State, Happening)))
def test_every_pair_has_a_defined_answer(state, happening):
    gang = Gang("ns/g", "ns", "g", state=state)
    changed = gang.advance(happening, 1.0)
    expected = TRANSITIONS.get((state, happening), state)
    assert gang.state is expected
    assert changed == (expected is not state)


def test_a_gang_that_is_evicted_does_not_come_back_by_late_events():
    late = [each for each in Happening if each not in (Happening.DROPPED, Happening.GONE)]
    for happening in late:
        gang = Gang("ns/g", "ns", "g", state=State.EVICTING)
        gang.advance(happening, 1.0)
        assert gang.state is State.EVICTING


def test_only_a_plan_leads_to_a_commit():
    assert {before for (before, _), after in TRANSITIONS.items() if after is State.COMMITTING} <= HOLDS_ROOM


def test_counts_agree_with_counting():
    """Random changes of members: the running counts equal a count from scratch."""
    rng = random.Random(7)
    sample = class_of(member("m"))
    gang = Gang("ns/g", "ns", "g")
    gang.roles = {name: Role(name, sample) for name in ("a", "b")}
    for step in range(2_000):
        if len(gang.members) < 6 or rng.random() < 0.1:
            uid = f"u{step}"
            each = gang.members[uid] = Member(PodRef("ns", uid, uid), rng.choice("ab"), sample)
        else:
            each = gang.members[rng.choice(list(gang.members))]
            if rng.random() < 0.2:
                gang.drop(each)
                continue
            for name in ("finished", "terminating", "gated", "charged", "posting"):
                setattr(each, name, rng.random() < 0.3)
            each.node = rng.choice(("", "n"))
            each.slot = rng.choice((0, 1))
        gang.retally(each)
        for standing in Standing:
            for role in "ab":
                counted = sum(1 for m in gang.members.values() if m.standing is standing and m.role == role)
                assert gang.of_standing(standing, role) == counted
        members = list(gang.members.values())
        assert gang.running == sum(bool(m.node and not m.finished and not m.terminating) for m in members)
        assert gang.present == sum(bool(m.node and not m.finished) for m in members)
        assert gang.posting == sum(m.posting for m in members)
        needing = (Standing.MISSING, Standing.WAITING)
        for role in "ab":
            assert gang.uncovered.get(role, 0) == sum(
                m.role == role and m.standing in needing and not m.slot and not m.charged for m in members
            )


def test_minimum_of_every_role_and_of_all():
    sample = class_of(member("m"))
    gang = Gang("ns/g", "ns", "g", min_member=3)
    gang.roles = {"master": Role("master", sample, 1, 1), "worker": Role("worker", sample, 4, 2)}
    for index in range(3):
        gang.members[f"w{index}"] = Member(PodRef("ns", f"w{index}", f"w{index}"), "worker", sample, node="n")
        gang.retally(gang.members[f"w{index}"])
    assert not gang.minimum_met(), "three are bound, and no master"
    gang.members["m"] = Member(PodRef("ns", "m", "m"), "master", sample, finished=True)
    gang.retally(gang.members["m"])
    assert gang.minimum_met(), "a finished member counts as served"


class TestTimers:
    def test_due_in_order_and_once(self):
        timers = Timers()
        timers.set(Timer.WAKE, "b", 2.0)
        timers.set(Timer.WAKE, "a", 1.0)
        assert timers.next_due() == 1.0
        assert timers.pop_due(5.0) == (Timer.WAKE, "a")
        assert timers.pop_due(5.0) == (Timer.WAKE, "b")
        assert timers.pop_due(5.0) is None

    def test_setting_again_moves_it(self):
        timers = Timers()
        timers.set(Timer.WAKE, "a", 1.0)
        timers.set(Timer.WAKE, "a", 3.0)
        assert timers.pop_due(2.0) is None
        timers.set_earliest(Timer.WAKE, "a", 9.0)
        assert timers.next_due() == 3.0

    def test_a_cleared_timer_does_not_fire(self):
        timers = Timers()
        timers.set(Timer.WAKE, "a", 1.0)
        timers.clear(Timer.WAKE, "a")
        assert timers.next_due() is None

    def test_moving_a_timer_for_ever_does_not_grow(self):
        timers = Timers()
        for step in range(10_000):
            timers.set(Timer.WAKE, "a", float(step))
        assert len(timers._heap) < 200


def test_ten_thousand_gangs_come_and_go():
    """A14, invariant 8: map sizes and series return to base."""
    stage = Stage().add(node("a", cpu=64)).start()
    before = stage.core.metrics()
    for index in range(10_000):
        name = f"g{index}"
        pods = [member(f"{name}-{i}", name) for i in range(1 + index % 2)]
        stage.add(pod_group(name, len(pods)), *pods)
        for each in pods:
            stage.schedule(each)
        for each in pods:
            stage.delete(each)
        stage.perform(stage.core.pod_group_deleted("default", name, stage.now))
        stage.pass_time(0.05)
        stage.effects.clear()
        stage.groups.clear()
    stage.pass_time(200)
    after = stage.core.metrics()
    assert after.sizes == before.sizes
    assert after.gangs == before.gangs
    assert len(after.refusals) < 20
    assert len(stage.posts) == 15_000
