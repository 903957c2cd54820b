"""A slot's node that is not offered: swap, move, or a refusal that proves nothing."""

from extender import answers_filter
from tests.unit.extender_objects import member, node, pod, pod_group
from tests.unit.extender_stage import Stage


def stage_with(count: int, *nodes, cpu: str = "2"):
    stage = Stage().add(*nodes).start()
    gang = [member(f"m{i}", "g", cpu=cpu) for i in range(count)]
    stage.add(pod_group("g", count), *gang)
    return stage, gang


def test_slots_of_a_class_are_interchangeable():
    stage, gang = stage_with(2, node("a", cpu=2), node("b", cpu=2))
    assert stage.node_for(gang[0], ["b"]) == "b"
    assert stage.node_for(gang[1], ["a"]) == "a"


def test_a_member_with_a_slot_swaps_it_for_a_free_one():
    stage, gang = stage_with(2, node("a", cpu=2), node("b", cpu=2))
    first = stage.node_for(gang[0])
    other = "b" if first == "a" else "a"
    assert stage.node_for(gang[0], [other]) == other
    assert stage.core.metrics().swaps == 1
    assert stage.node_for(gang[1], [first]) == first


def test_a_slot_moves_to_offered_room_that_nobody_was_promised():
    stage, gang = stage_with(1, node("a", cpu=2), node("b", cpu=8))
    assert stage.node_for(gang[0], ["b"]) == "b"
    assert stage.core.metrics().moves == 1
    assert stage.core.metrics().slots == 1


def test_promised_room_is_not_moved_into():
    stage, gang = stage_with(1, node("a", cpu=2), node("b", cpu=2))
    others = [member("x0", "other", cpu="2")]
    stage.node_for(gang[0])
    stage.add(pod_group("other", 1), *others)
    stage.node_for(others[0])
    taken = next(slot.node for slot in stage.core._world.ledger.slots.values() if slot.gang == "default/other")
    answer = stage.filter(gang[0], [taken])
    assert answer.unresolvable == {taken: answers_filter.NOT_OFFERED}


def test_one_call_never_proves_a_gang_infeasible():
    # A single nominated node is offered that does not fit: nothing is released.
    stage, gang = stage_with(2, node("a", cpu=4), node("tiny", cpu=1))
    stage.node_for(gang[0])
    assert stage.node_for(gang[1], ["tiny"]) is None
    assert stage.core.metrics().slots == 2
    assert stage.states() == {"planned": 1}


def test_a_refusal_for_a_node_not_offered_is_woken():
    stage, gang = stage_with(1, node("a", cpu=4), node("tiny", cpu=1))
    assert stage.node_for(gang[0], ["tiny"]) is None
    stage.pass_time(1.1)
    assert stage.woken == ["m0"]


def test_a_node_that_is_never_offered_is_planned_around():
    # kube-scheduler filters node a out for reasons not modelled (volumes); room on b is promised to a later gang first.
    stage, gang = stage_with(1, node("a", cpu=2), node("b", cpu=3), cpu="2")
    assert stage.node_for(gang[0], ["a", "b"]) == "a"
    blocker = member("x", "other", cpu="2")
    stage.add(pod_group("other", 1), blocker)
    assert stage.node_for(blocker) == "b"
    for _ in range(3):
        assert stage.node_for(gang[0], ["b", "c"]) is None
    stage.delete(blocker)
    stage.pass_time(1)
    assert stage.node_for(gang[0], ["b"]) == "b"


def test_bind_on_another_node_than_planned_moves_the_slot_if_that_fits():
    stage, gang = stage_with(1, node("a", cpu=2), node("b", cpu=8))
    assert stage.node_for(gang[0]) == "a"
    call = stage.bind(gang[0], "b")
    assert stage.answers[call] == ""
    assert stage.bound() == {"m0": "b"}


def test_bind_where_there_is_no_room_is_an_error():
    stage, gang = stage_with(1, node("a", cpu=2), node("b", cpu=1))
    stage.node_for(gang[0])
    call = stage.bind(gang[0], "b")
    assert stage.answers[call]
    assert not stage.bound()


def test_sampled_offers_land_a_gang_on_a_large_cluster():
    # 420 of 1,000 names per call, a rotating sample, as kube-scheduler does without a nominated node.
    nodes = [node(f"n{i:04}", cpu=2) for i in range(200)]
    stage, gang = stage_with(100, *nodes)
    names = [each.metadata.name for each in nodes]
    for index, each in enumerate(gang):
        start = index * 84 % 200
        offered = [names[(start + step) % 200] for step in range(84)]
        assert isinstance(stage.schedule(each, offered), int)
    assert len(stage.bound()) == 100
    assert len(set(stage.bound().values())) == 100


def test_plain_pods_may_use_what_a_move_left():
    stage, gang = stage_with(1, node("a", cpu=2), node("b", cpu=8))
    stage.node_for(gang[0])
    assert stage.filter(pod("p", cpu="2")).node_names == ["b"]
    stage.node_for(gang[0], ["b"])
    assert stage.filter(pod("p", cpu="2")).node_names == ["a", "b"]
