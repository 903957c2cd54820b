"""A15: a PodGroup's phase and counts follow the pods, in every order of events."""

import itertools

import pytest

from extender.config import CoreConfig
from extender.effects import SetPodGroupStatus
from tests.unit.extender_objects import hub_pod, member, node, pod_group, reservation
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


def test_a_slow_api_server_does_not_make_our_own_write_another_writers(stage):
    """Two writes are on their way; the first is seen after the second was asked for, which then conflicts."""
    stage.auto_status = False
    pods = [member("m0", node="a")]
    stage.add(pod_group(minimum=1), *pods)
    stage.pass_time(1.5)
    stage.finish(pods[0])
    stage.pass_time(1.5)
    first, _second = stage.of(SetPodGroupStatus)
    stage.put_group_status(first)
    stage.auto_status = True
    assert phase(stage) == "Finished"


def test_what_the_leader_writes_is_nobody_elses_to_the_one_that_stands_by(stage):
    stage.perform(stage.core.stood_down(stage.now))
    stage.add(pod_group(minimum=1), member("m0"))
    theirs = copy(stage.groups["default", "train"])
    theirs.status.phase = "Scheduling"
    stage.add(theirs)
    stage.add(member("m0", node="a"))
    stage.perform(stage.core.synced(stage.now))
    assert phase(stage) == "Running"


def test_the_last_write_of_the_former_leader_may_come_after_the_take_over():
    stage = Stage(CoreConfig(takeover_grace=1.0)).add(node("a", cpu=8), pod_group(minimum=1), member("m0", node="a"))
    stage.start()
    late = copy(stage.groups["default", "train"])
    late.status.phase = "Scheduling"
    stage.add(late)
    assert phase(stage) == "Running"


def test_a_group_without_pods_is_pending(stage):
    stage.add(pod_group(minimum=2))
    assert phase(stage) == "Pending"


def test_when_all_pods_are_deleted_nothing_runs(stage):
    pods = [member(f"m{i}", node="a") for i in range(2)]
    stage.add(pod_group(minimum=2), *pods)
    assert phase(stage) == "Running"
    for each in pods:
        stage.delete(each)
    assert phase(stage) == "Pending"
    assert counts(stage) == (0, 0, 0, 0)


def test_pods_deleted_while_nobody_decided(stage):
    pods = [member(f"m{i}", node="a") for i in range(2)]
    stage.add(pod_group(minimum=2), *pods)
    assert phase(stage) == "Running"
    stage.perform(stage.core.stood_down(stage.now))
    for each in pods:
        stage.delete(each)
    stage.perform(stage.core.synced(stage.now))
    assert phase(stage) == "Pending"


@pytest.mark.parametrize(("end", "said"), [("Succeeded", "Finished"), ("Failed", "Failed")])
def test_the_end_stands_when_the_pods_are_cleaned_up(stage, end, said):
    pods = [member(f"m{i}", node="a") for i in range(2)]
    stage.add(pod_group(minimum=2), *pods)
    for each in pods:
        stage.finish(each, end)
    assert phase(stage) == said
    for each in pods:
        stage.delete(each)
        if end == "Succeeded":
            assert phase(stage) == said
    assert phase(stage) == said


def test_a_group_made_anew_begins_anew(stage):
    """Its predecessor's writer does not matter."""
    stage.add(pod_group(minimum=1), member("m0", node="a"))
    assert phase(stage) == "Running"
    theirs = copy(stage.groups["default", "train"])
    theirs.status.phase = "Scheduled"
    stage.add(theirs)
    anew = pod_group(minimum=1)
    anew.metadata.uid = "another"
    stage.add(anew)
    assert phase(stage) == "Running"


def test_a_group_of_the_hub_shows_its_latest_attempt(stage):
    stage.add(reservation(state="Dispatched"), pod_group("job", 3))
    pods = [hub_pod("job", "master"), hub_pod("job", "worker", 0), hub_pod("job", "worker", 1)]
    stage.add(*pods)
    for each in pods:
        stage.schedule(each)
    stage.pass_time(1.5)
    status = stage.groups["default", "job"].status
    assert (status.phase, status.running) == ("Running", 3)
    for each in pods:
        stage.delete(each)
    stage.perform(stage.core.reservation_deleted("muster-system", "id-job-1", stage.now))
    stage.add(reservation(epoch=2))
    stage.pass_time(1.5)
    status = stage.groups["default", "job"].status
    assert (status.phase, status.running) == ("Pending", 0)
    stage.perform(stage.core.reservation_deleted("muster-system", "id-job-2", stage.now))
    assert stage.core.metrics().sizes["group_of_hub"] == 0
