"""A15: a PodGroup's phase and counts follow the pods, in every order of events."""

import itertools

import pytest

from extender.effects import SetPodGroupStatus
from tests.unit.extender_objects import member, node, pod_group
from tests.unit.extender_stage import Stage, copy


@pytest.fixture
def stage() -> Stage:
    return Stage().add(node("a", cpu=8)).start()


def phase(stage: Stage) -> str:
    stage.pass_time(1.5)
    return stage.groups["default", "train"].status.phase


def counts(stage: Stage) -> tuple[int, int, int, int]:
    status = stage.groups["default", "train"].status
    return status.scheduled, status.running, status.succeeded, status.failed


def test_the_life_of_a_job(stage):
    pods = [member(f"m{i}") for i in range(2)]
    stage.add(pod_group(minimum=2), pods[0])
    assert phase(stage) == "Pending"
    stage.add(pods[1])
    assert phase(stage) == "Scheduling"
    for each in pods:
        stage.schedule(each)
    assert phase(stage) == "Running"
    assert counts(stage) == (2, 2, 0, 0)
    stage.finish(pods[0])
    assert phase(stage) == "Running"
    stage.finish(pods[1])
    assert phase(stage) == "Finished"
    assert counts(stage) == (2, 0, 2, 0)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_last_word_does_not_depend_on_the_order_of_events(stage, order):
    ended = [
        member("m0", node="a", phase="Succeeded"),
        member("m1", node="a", phase="Failed"),
        member("m2", node="a", phase="Running"),
    ]
    stage.add(pod_group(minimum=3))
    for index in order:
        stage.add(ended[index])
        stage.pass_time(1.5)
    assert phase(stage) == "Failed"
    assert counts(stage) == (3, 1, 1, 1)


def test_failed_is_not_final_while_the_job_restarts(stage):
    pods = [member(f"m{i}", node="a") for i in range(2)]
    stage.add(pod_group(minimum=2), *pods)
    stage.finish(pods[0], "Failed")
    assert phase(stage) == "Failed"
    again = member("m0", uid="uid-again")
    stage.add(again)
    assert phase(stage) == "Scheduling"
    stage.schedule(again)
    assert phase(stage) == "Running"


def test_one_write_for_a_burst(stage):
    pods = [member(f"m{i}") for i in range(8)]
    stage.add(pod_group(minimum=8), *pods)
    for each in pods:
        stage.schedule(each)
    stage.pass_time(5)
    assert len(stage.of(SetPodGroupStatus)) == 1


def test_a_conflict_is_judged_again_on_the_newer_object(stage):
    stage.auto_status = False
    stage.add(pod_group(minimum=2), *(member(f"m{i}", node="a") for i in range(2)))
    stage.pass_time(1.5)
    assert len(stage.of(SetPodGroupStatus)) == 1
    newer = copy(stage.groups["default", "train"])
    newer.metadata.resource_version = "7"
    newer.spec.min_member = 1
    stage.auto_status = True
    stage.add(newer)
    assert phase(stage) == "Running"


def test_another_writer_is_not_fought(stage):
    stage.add(pod_group(minimum=1), member("m0", node="a"))
    assert phase(stage) == "Running"
    theirs = copy(stage.groups["default", "train"])
    theirs.status.phase = "Scheduled"
    stage.add(theirs)
    stage.finish(member("m0", node="a"))
    assert phase(stage) == "Scheduled"
