import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.job_reader import read_job
from kube.objects.quantity import format_amount
from tests import samples
from tests.unit.dispatcher_objects import a_job, example, problems, pytorchjob, read, role, template

VALID = sorted(name for name, expected in samples.EXPECTED.items() if expected["valid"])
INVALID = sorted(name for name, expected in samples.EXPECTED.items() if not expected["valid"])


@pytest.mark.parametrize("name", VALID)
def test_valid_samples_read_as_expected(name: str) -> None:
    expected = samples.EXPECTED[name]

    job = read(samples.job(name))

    assert [{"name": r.name, "replicas": r.replicas, "pod_request": r.request} for r in job.roles] == expected["roles"]
    assert job.gang_min == expected["gang_min"]
    assert job.total_request() == expected["total_request"]


@pytest.mark.parametrize("name", INVALID)
def test_invalid_samples_are_refused_with_the_expected_reason(name: str) -> None:
    [problem] = problems(samples.job(name))

    assert problem.startswith(samples.EXPECTED[name]["problem"])


def test_the_example_job_asks_for_what_its_readme_says() -> None:
    job = read(example("pytorchjob.yaml"))

    # 1 x cpu 10m + 2 x (cpu 2, 2Gi)
    assert job.total_request() == {"cpu": 4010, "memory": 4 << 30}
    assert [(c.name, c.replicas, c.min_replicas, c.request) for c in job.components()] == [
        ("master", 1, 1, {"cpu": "10m"}),
        ("worker", 2, 2, {"cpu": "2", "memory": "2Gi"}),
    ]
    assert job.gang_min == 3
    assert job.run_policy.clean_pod_policy == "None"


# --- problems say what to do


def test_a_role_of_the_wrong_case_is_told_the_right_one() -> None:
    document = pytorchjob(master=None)
    document["spec"]["pytorchReplicaSpecs"]["master"] = role(1)

    assert problems(document) == ["spec.pytorchReplicaSpecs key 'master' is not Master or Worker: write Master"]


def test_an_unknown_role_is_to_be_renamed_or_removed() -> None:
    document = pytorchjob()
    document["spec"]["pytorchReplicaSpecs"]["Evaluator"] = role(1)

    assert problems(document) == [
        "spec.pytorchReplicaSpecs key 'Evaluator' is not Master or Worker: rename it to Master or Worker, or remove it"
    ]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"worker": role(0)}, "spec.pytorchReplicaSpecs.Worker.replicas 0 is not allowed: use 1 or more, or leave"),
        ({"worker": {**role(), "replicas": "two"}}, "spec.pytorchReplicaSpecs.Worker.replicas 'two' is not a whole"),
        ({"master": role(2)}, "spec.pytorchReplicaSpecs.Master.replicas 2 is not allowed: a job has exactly 1 Master"),
        ({"master": None, "worker": None}, "spec.pytorchReplicaSpecs is empty"),
        ({"worker": None, "master": {"replicas": 1}}, "spec.pytorchReplicaSpecs.Master.template.spec is missing"),
        ({"worker": "many"}, "spec.pytorchReplicaSpecs.Worker is empty"),
        ({"worker": role(2**31 - 1)}, "spec.pytorchReplicaSpecs describes 2147483648 pods: a job has at most"),
        ({"worker": role(1, cpu="1e64")}, "spec.pytorchReplicaSpecs.Worker.template asks for more cpu in one pod than"),
        ({"worker": role(1, memory="8Ei")}, "spec.pytorchReplicaSpecs.Worker.template asks for more memory in one pod"),
        ({"worker": {**role(), "restartPolicy": "Sometimes"}}, "spec.pytorchReplicaSpecs.Worker.restartPolicy 'Some"),
        ({"worker": role(1, cpu="much")}, "spec.pytorchReplicaSpecs.Worker.template cannot make pods: cpu: quantity"),
        ({"worker": role(1, cpu=-1)}, "spec.pytorchReplicaSpecs.Worker.template cannot make pods: cpu: quantity -1"),
        ({"cleanPodPolicy": "Some"}, "spec.runPolicy.cleanPodPolicy 'Some' is not one of All, Running, None"),
        ({"runPolicy": {"backoffLimit": -1}}, "spec.runPolicy.backoffLimit -1 is not a whole number of 0 or more"),
        ({"runPolicy": {"schedulingPolicy": {"minAvailable": 4}}}, "spec.runPolicy.schedulingPolicy.minAvailable 4 is"),
        ({"runPolicy": {"schedulingPolicy": {"minAvailable": 0}}}, "spec.runPolicy.schedulingPolicy.minAvailable 0 is"),
        ({"worker": None, "elasticPolicy": {"minReplicas": 1}}, "spec.elasticPolicy needs a Worker role"),
        ({"elasticPolicy": {"minReplicas": 3, "maxReplicas": 2}}, "spec.elasticPolicy.minReplicas 3 with maxReplicas"),
    ],
)  # fmt: skip
def test_each_mistake_has_its_own_sentence(spec: dict[str, Any], expected: str) -> None:
    [problem] = problems(pytorchjob(**spec))

    assert problem.startswith(expected)


def test_all_mistakes_are_told_at_once() -> None:
    told = problems(pytorchjob("Big_Job", master=role(0), worker=role(-1)))

    assert [problem.split(" ", 1)[0] for problem in told] == [
        "spec.pytorchReplicaSpecs.Master.replicas",
        "spec.pytorchReplicaSpecs.Worker.replicas",
        "metadata.name",
    ]


@pytest.mark.parametrize("name", ["", "Train", "7b", "a_b", "a.b", "-a", "a-", "ä", "a\n"])
def test_names_are_dns_1035_labels(name: str) -> None:
    [problem] = problems(pytorchjob(name))

    assert problem.startswith(f"metadata.name {name!r} is not a DNS-1035 label")


def test_a_name_is_as_long_as_its_longest_pod_name_allows() -> None:
    # "-master-0" and "-worker-0" leave 54 of 63; worker 10 needs one more ("-worker-10").
    assert problems(pytorchjob("a" * 54)) == []
    assert problems(pytorchjob("a" * 53, worker=role(11))) == []
    [problem] = problems(pytorchjob("a" * 54, worker=role(11)))
    assert problem.endswith("pod names end in '-worker-10' and may have 63 characters; use at most 53")


def test_an_elastic_job_has_to_leave_room_for_its_last_worker() -> None:
    elastic = {"minReplicas": 1, "maxReplicas": 1000}

    [problem] = problems(pytorchjob("a" * 54, elasticPolicy=elastic))

    assert "'-worker-999'" in problem


def test_the_training_container_is_named_pytorch_and_has_an_image() -> None:
    nameless = role()
    nameless["template"]["spec"]["containers"][0]["name"] = "main"
    bare = role()
    del bare["template"]["spec"]["containers"][0]["image"]

    containers = "spec.pytorchReplicaSpecs.Worker.template.spec.containers"
    assert problems(pytorchjob(worker=nameless)) == [
        f"{containers} has no container named 'pytorch': the training container must have that name"
    ]
    assert problems(pytorchjob(worker=bare)) == [f"{containers} has no image for container 'pytorch': name one"]


@pytest.mark.parametrize("name", ["", "default-scheduler", "muster"])
def test_an_explicit_default_scheduler_is_as_good_as_none(name: str) -> None:
    named = role()
    named["template"]["spec"]["schedulerName"] = name

    assert problems(pytorchjob(master=named)) == []


def test_another_scheduler_is_refused() -> None:
    named = role()
    named["template"]["spec"]["schedulerName"] = "volcano"

    [problem] = problems(pytorchjob(worker=named))

    assert problem == (
        "spec.pytorchReplicaSpecs.Worker.template.spec.schedulerName 'volcano' knows nothing of this job's gang: "
        "leave it out, the right scheduler is filled in"
    )


def test_a_native_scheduling_group_is_refused() -> None:
    grouped = role()
    grouped["template"]["spec"]["schedulingGroup"] = {"podGroupName": "mine"}

    [problem] = problems(pytorchjob(worker=grouped))

    assert problem.startswith("spec.pytorchReplicaSpecs.Worker.template.spec.schedulingGroup makes a gang of its own")


def test_other_kinds_are_not_read() -> None:
    assert problems({"apiVersion": "batch/v1", "kind": "Job"}) == ["kind Job (batch/v1) is not scheduled here"]
    assert problems({}) == ["kind (no kind) (no apiVersion) is not scheduled here"]


# --- the gang


def test_the_master_is_always_needed_and_the_rest_comes_from_the_workers() -> None:
    job = a_job(worker=role(6), runPolicy={"schedulingPolicy": {"minAvailable": 5}})

    assert (job.pods, job.gang_min) == (7, 5)
    assert [(r.name, r.replicas, r.min_replicas) for r in job.roles] == [("master", 1, 1), ("worker", 6, 4)]


def test_min_available_of_one_still_needs_the_master() -> None:
    job = a_job(runPolicy={"schedulingPolicy": {"minAvailable": 1}})

    assert [(r.name, r.min_replicas) for r in job.roles] == [("master", 1), ("worker", 0)]


def test_min_available_overrules_elastic_min() -> None:
    elastic = {"minReplicas": 2, "maxReplicas": 8}

    assert a_job(master=None, worker=role(6), elasticPolicy=elastic).gang_min == 2
    policy = {"schedulingPolicy": {"minAvailable": 4}}
    assert a_job(master=None, worker=role(6), elasticPolicy=elastic, runPolicy=policy).gang_min == 4


def test_an_elastic_min_above_the_workers_asked_for_means_all_of_them() -> None:
    reading = read_job(pytorchjob(master=None, worker=role(2), elasticPolicy={"minReplicas": 4, "maxReplicas": 8}))

    assert reading.job is not None
    assert reading.job.gang_min == 2
    assert reading.warnings == ("spec.elasticPolicy allows 4 to 8 replicas and Worker.replicas is 2: 2 are started",)


def test_k14_replicas_default_to_one_and_null_is_absent() -> None:
    document = pytorchjob(master=role(None), worker={**role(None), "replicas": None})

    assert [r.replicas for r in read(document).roles] == [1, 1]


def test_k14_priority_is_the_highest_over_roles_whatever_their_order() -> None:
    classes = {"low": 10, "high": 1000}
    low, high, none = role(), role(), role()
    low["template"]["spec"]["priorityClassName"] = "low"
    high["template"]["spec"]["priorityClassName"] = "high"

    assert a_job(master=low, worker=high).priority(classes) == 1000
    assert a_job(master=high, worker=low).priority(classes) == 1000
    assert a_job(master=none, worker=low).priority(classes, default=50) == 50
    assert a_job(master=none, worker=low).priority(classes, default=5) == 10
    assert a_job(master=low, worker=high).priority({}, default=7) == 7
    assert a_job(master=low, worker=high).priority(classes, policy_class="low") == 10


def test_k13_a_limit_stands_for_a_missing_request_per_resource() -> None:
    mixed = role(2, cpu=1)
    mixed["template"]["spec"]["containers"][0]["resources"]["limits"] = {"cpu": 4, "nvidia.com/gpu": 2}

    assert a_job(master=None, worker=mixed).total_request() == {"cpu": 2000, "nvidia.com/gpu": 4}


# --- policy, from both places


def test_run_policy_wins_over_the_old_place_with_a_warning() -> None:
    reading = read_job(samples.job("null-limit-zero-quantity.yaml"))

    assert reading.job is not None
    assert reading.job.run_policy.clean_pod_policy == "Running"
    assert reading.job.run_policy.ttl_seconds_after_finished == 900
    clean, ttl, priorities = reading.warnings
    assert clean == "spec.cleanPodPolicy All is ignored: spec.runPolicy.cleanPodPolicy Running wins"
    assert ttl == "spec.ttlSecondsAfterFinished 60 is ignored: spec.runPolicy.ttlSecondsAfterFinished 900 wins"
    assert priorities.startswith(
        "roles of one gang have different priority classes (Master train-high, Worker train-low)"
    )


def test_the_old_place_alone_counts_and_warns_of_nothing() -> None:
    reading = read_job(samples.job("legacy-fields-mixed-scheduler.yaml"))

    assert reading.job is not None
    assert reading.job.run_policy.clean_pod_policy == "Running"
    assert reading.job.run_policy.ttl_seconds_after_finished == 3600
    assert reading.warnings == ()


@pytest.mark.parametrize(("value", "held"), [("true", True), ("false", False), ("", False)])
def test_k17_only_true_in_the_suspend_annotation_holds_a_job(value: str, held: bool) -> None:
    assert a_job(annotations={"scheduling.x-k8s.io/suspend": value}).held is held


def test_the_users_suspend_holds_a_job() -> None:
    assert a_job(runPolicy={"suspend": True}).held
    assert not a_job(runPolicy={"suspend": False}).held
    assert read(samples.job("anchors-eight-rdma-min-available.yaml")).held


@pytest.mark.parametrize("policy", [None, {}, {"suspend": None}, {"suspend": False}])
def test_k12_a_suspend_that_is_taken_back_in_any_way_holds_no_more(policy: Any) -> None:
    assert not a_job(runPolicy=policy).held


def test_k18_absent_and_null_metadata_is_no_metadata() -> None:
    document = pytorchjob()
    document["metadata"] |= {"labels": None, "annotations": None}

    assert (read(document).labels, read(document).annotations) == ({}, {})
    assert read(document).preemptible


@pytest.mark.parametrize("group", ["alibabacloud.com", "koordinator.sh"])
def test_both_spellings_of_the_quota_labels_count(group: str) -> None:
    job = a_job(labels={f"quota.scheduling.{group}/name": "b", f"quota.scheduling.{group}/preemptible": "false"})

    assert (job.quota_label, job.preemptible) == ("b", False)
    assert (a_job().quota_label, a_job().preemptible) == ("", True)


# --- nothing crashes it

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=6,
)


def paths(value: Any, where: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [where] if where else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += paths(item, (*where, key))
    return found


@settings(deadline=None)
@given(st.sampled_from(VALID), st.data())
def test_a_document_damaged_anywhere_reads_as_a_job_or_as_problems(name: str, data: st.DataObject) -> None:
    document = copy.deepcopy(samples.job(name))
    where = data.draw(st.sampled_from(paths(document)))
    holder = document
    for step in where[:-1]:
        holder = holder[step]
    holder[where[-1]] = data.draw(json_values)

    reading = read_job(document)

    assert (reading.job is None) == bool(reading.problems)
    for problem in reading.problems:
        assert problem.message.startswith((problem.field, "kind "))


@given(st.integers(min_value=1, max_value=2**31 - 1), st.integers(min_value=0, max_value=1 << 40))
def test_a_total_is_replicas_times_request(replicas: int, cpu: int) -> None:
    job = a_job(master=None, worker=role(replicas, cpu=format_amount("cpu", cpu)), name="a")

    assert job.total_request() == ({"cpu": replicas * cpu} if cpu else {})


def test_templates_are_not_changed_by_reading() -> None:
    document = pytorchjob(worker={"replicas": 1, "template": template(cpu=1)})
    before = copy.deepcopy(document)

    read(document)

    assert document == before
