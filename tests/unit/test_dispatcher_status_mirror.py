from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.status_mirror import hub_status, initial_status, observe, running_condition, with_condition
from kube.objects.binding import BindingSpec, JobRef
from kube.objects.meta import Condition
from tests.unit.dispatcher_objects import a_job, role

NOW = "2026-03-01T12:00:00Z"
JOB = a_job("pytorch-test")


def condition(type_: str, status: str = "True", **extra: Any) -> dict[str, Any]:
    return {"type": type_, "status": status, "reason": f"PyTorchJob{type_}", "message": f"job is {type_}.", **extra}


def state(document: dict[str, Any]) -> str:
    """What `kubectl get pytorchjob` prints: `.status.conditions[-1:].type`."""
    return str(document["conditions"][-1]["type"])


# --- K11


@pytest.mark.parametrize(
    "status",
    [
        None,
        {},
        {"conditions": None},
        {"conditions": []},
        {"conditions": [condition("Succeeded", "False"), condition("Failed", "Unknown")]},
        {"conditions": [{"type": "Succeeded"}]},
        {"conditions": ["Succeeded"], "completionTime": NOW},
        {"replicaStatuses": {"Master": {"succeeded": 1}, "Worker": {"succeeded": 2}}},
        "Succeeded",
    ],
)
def test_k11_unknown_or_empty_is_never_finished(status: Any) -> None:
    assert not observe({"status": status}).finished
    assert not observe({}).finished


def test_k11_a_failure_is_a_failure() -> None:
    seen = observe({"status": {"conditions": [condition("Running", "False"), condition("Failed")]}})

    assert (seen.state, seen.finished, seen.message) == ("Failed", True, "job is Failed.")


def test_the_end_is_dated_by_the_operator_or_else_by_its_condition() -> None:
    ended = condition("Succeeded", lastTransitionTime="2026-03-01T11:00:00Z")

    assert observe({"status": {"conditions": [ended]}}).completion_time == "2026-03-01T11:00:00Z"
    status = {"conditions": [ended], "completionTime": "2026-03-01T10:59:59Z"}
    assert observe({"status": status}).completion_time == "2026-03-01T10:59:59Z"


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (["Created"], "Created"),
        (["Created", "Running"], "Running"),
        (["Created", "Running:False", "Restarting"], "Restarting"),
        (["Created", "Restarting:False", "Running"], "Running"),
        (["Created", "Running:False", "Suspended"], "Suspended"),
        (["Created", "Running", "Suspended:False"], "Running"),
        (["Created", "Running:False", "Succeeded"], "Succeeded"),
        (["Created", "Succeeded", "Running:False"], "Succeeded"),
        (["Created", "Running:False", "Failed"], "Failed"),
        (["Created", "Running", "Queuing:False"], "Running"),
        (["Queuing"], ""),
    ],
)
def test_the_state_is_what_holds_now(conditions: list[str], expected: str) -> None:
    made = [condition(*entry.split(":")) for entry in conditions]

    assert observe({"status": {"conditions": made}}).state == expected
    if expected:
        assert state(hub_status({"conditions": made}, JOB, NOW)) == expected


# --- the hub's copy


def test_a_job_that_muster_has_taken_shows_created() -> None:
    status = initial_status(JOB, NOW)

    assert state(status) == "Created"
    assert status["conditions"][0]["message"] == "PyTorchJob pytorch-test is created."
    assert status["replicaStatuses"] == {"Master": {}, "Worker": {}}
    assert hub_status(None, JOB, NOW) == status
    assert hub_status({"conditions": []}, JOB, NOW) == status


def test_everything_else_is_copied_and_what_schemas_require_is_there() -> None:
    member = {
        "conditions": [condition("Created"), condition("Running")],
        "replicaStatuses": {"Master": {"active": 1, "selector": "x"}},
        "startTime": "2026-03-01T11:00:00Z",
        "observedGeneration": 3,
    }

    assert hub_status(member, JOB, NOW) == {
        "conditions": member["conditions"],
        "replicaStatuses": {"Master": {"active": 1, "selector": "x"}, "Worker": {}},
        "startTime": "2026-03-01T11:00:00Z",
    }


def test_mirroring_twice_changes_nothing() -> None:
    member = {"conditions": [condition("Created"), condition("Running"), condition("Suspended", "False")]}

    once = hub_status(member, JOB, NOW)

    assert hub_status(once, JOB, "later") == once


conditions = st.lists(
    st.builds(condition, st.sampled_from(["Created", "Running", "Restarting", "Suspended", "Succeeded", "Failed"]),
              st.sampled_from(["True", "False", "Unknown"])),
    max_size=6,
)  # fmt: skip


@given(conditions)
def test_no_condition_is_lost_and_the_last_is_the_state(given_conditions: list[dict[str, Any]]) -> None:
    status = hub_status({"conditions": given_conditions}, JOB, NOW)
    seen = observe({"status": {"conditions": given_conditions}})

    if given_conditions:
        key = str
        assert sorted(status["conditions"], key=key) == sorted(given_conditions, key=key)
    if seen.state:
        assert state(status) == seen.state


# --- conditions of the hub's own


def queuing(status: str, message: str = "", at: str = NOW) -> Condition:
    return Condition(type="Queuing", status=status, reason="JobEnqueued", message=message, last_transition_time=at)


def test_queuing_stands_before_the_state() -> None:
    status = with_condition(initial_status(JOB, NOW), queuing("True", "Job Enqueued"))

    assert [c["type"] for c in status["conditions"]] == ["Queuing", "Created"]
    again = with_condition(status, queuing("True", "Job Enqueued", "later"))
    assert again == status
    changed = with_condition(status, queuing("False", "Job Dequeued", "later"))
    assert [c["type"] for c in changed["conditions"]] == ["Queuing", "Created"]
    assert changed["conditions"][0]["lastTransitionTime"] == "later"
    assert state(with_condition({}, queuing("True"))) == "Queuing"


# --- running means the gang


def placed(job: Any) -> BindingSpec:
    return BindingSpec(
        hub_id="hub",
        job_id="id",
        job=JobRef(api_version="kubeflow.org/v1", kind="PyTorchJob", name="train", uid="u"),
        components=job.components(),
        min_member=job.gang_min,
    )


def running(
    active: dict[str, int], succeeded: dict[str, int] | None = None, job: Any = JOB, **kwargs: Any
) -> Condition:
    counts: dict[str, dict[str, int]] = {}
    for field, numbers in (("active", active), ("succeeded", succeeded or {})):
        for key, number in numbers.items():
            counts.setdefault(key, {})[field] = number
    status = {"conditions": [condition("Running")], "replicaStatuses": counts}
    return running_condition(
        observe({"status": status}), placed(job), 1, kwargs.get("previous"), kwargs.get("now", NOW)
    )


def test_an_active_master_alone_does_not_run_the_gang() -> None:
    seen = running({"Master": 1})

    assert (seen.status, seen.reason) == ("False", "RequiredPodsNotActive")
    assert seen.message == "active: master 1 of 1, worker 0 of 2"


def test_all_required_pods_active_is_running() -> None:
    assert running({"Master": 1, "Worker": 2}).status == "True"
    assert running({"Worker": 2}, {"Master": 1}).status == "True"
    assert running({"Worker": 3}).status == "False"


def test_the_minimum_is_what_is_required() -> None:
    job = a_job(worker=role(6), runPolicy={"schedulingPolicy": {"minAvailable": 4}})

    assert running({"Master": 1, "Worker": 2}, job=job).status == "False"
    assert running({"Master": 1, "Worker": 3}, job=job).status == "True"


def test_no_status_is_unknown_and_an_end_is_not_running() -> None:
    assert running_condition(observe({}), placed(JOB), 1, None, NOW).status == "Unknown"
    ended = observe({"status": {"conditions": [condition("Succeeded")]}})
    assert running_condition(ended, placed(JOB), 1, None, NOW).reason == "JobSucceeded"


def test_the_transition_time_moves_with_the_status_only() -> None:
    first = running({"Master": 1})
    same = running({"Master": 1, "Worker": 1}, previous=first, now="later")
    changed = running({"Master": 1, "Worker": 2}, previous=same, now="later")

    assert same.last_transition_time == NOW
    assert same.message != first.message
    assert changed.last_transition_time == "later"
