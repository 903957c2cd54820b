from typing import Any

import pytest

from dispatcher.dialects import (
    ARENA,
    TRAINING_OPERATOR,
    CannotCarry,
    detect_dialect,
    member_copy,
    member_pod_group,
    member_reservation,
    why_not,
)
from dispatcher.documents import deep_copy
from dispatcher.member_objects import Identity, member_namespace
from kube.objects.resources import parse_resources
from tests import samples
from tests.unit.dispatcher_objects import IDENTITY, a_job, example, pytorchjob, read, role

VALID = sorted(name for name, expected in samples.EXPECTED.items() if expected["valid"])
IDENTITY_ANNOTATIONS = {"muster.dev/hub-id": "hub-1", "muster.dev/id": "pytorch-test-x7k2", "muster.dev/epoch": "3"}


def copied(document: dict[str, Any], dialect: str = TRAINING_OPERATOR, scheduler: str = "muster") -> dict[str, Any]:
    return member_copy(read(document), dialect, scheduler, IDENTITY).document


def marks(document: dict[str, Any]) -> dict[str, str]:
    """The annotations muster has put on an object."""
    annotations = document["metadata"]["annotations"]
    return {name: value for name, value in annotations.items() if name.startswith("muster.dev/")}


def templates(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [spec["template"] for spec in document["spec"]["pytorchReplicaSpecs"].values()]


@pytest.mark.parametrize("name", VALID)
@pytest.mark.parametrize("dialect", [TRAINING_OPERATOR, ARENA])
def test_copies_of_samples_ask_for_the_same_and_are_marked(name: str, dialect: str) -> None:
    job = read(samples.job(name))
    before = deep_copy(job.document)
    if why_not(job, dialect):
        with pytest.raises(CannotCarry):
            member_copy(job, dialect, "muster", IDENTITY)
        return

    document = member_copy(job, dialect, "muster", IDENTITY).document

    again = read(document)
    assert [(r.name, r.replicas) for r in again.roles] == [(r.name, r.replicas) for r in job.roles]
    assert [r.request for r in again.roles] == [r.request for r in job.roles]
    assert marks(document) == IDENTITY_ANNOTATIONS
    for each in templates(document):
        assert marks(each) == IDENTITY_ANNOTATIONS
        assert each["spec"]["schedulerName"] == "muster"
        assert each["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == job.name
    assert job.document == before


def test_samples_that_the_legacy_schema_cannot_carry_say_why() -> None:
    told = {name: why_not(read(samples.job(name)), ARENA) for name in VALID}

    legacy = "its PyTorchJob operator (legacy schema) cannot run this job: "
    assert {name: reason for name, reason in told.items() if reason} == {
        "elastic-etcd-companions.yaml": f"{legacy}it needs a Master; it drops spec.elasticPolicy",
        "sidecar-and-overhead.yaml": f"{legacy}it drops restartPolicy of init container 'log-shipper' of Worker",
        "thirty-two-pods-decimal-memory.yaml": f"{legacy}it drops spec.nprocPerNode 8",
    }


# --- policy goes where the member reads it


def test_the_example_job_in_both_dialects() -> None:
    """The example keeps its policy at spec level; training-operator would prune it there."""
    modern = copied(example("pytorchjob.yaml"))["spec"]
    arena = copied(example("pytorchjob.yaml"), ARENA)["spec"]

    assert modern["runPolicy"] == {"cleanPodPolicy": "None"}
    assert "cleanPodPolicy" not in modern
    assert arena["cleanPodPolicy"] == "None"
    assert "runPolicy" not in arena


def test_policy_in_both_places_arrives_once_as_run_policy_says() -> None:
    document = samples.job("null-limit-zero-quantity.yaml")

    assert copied(document)["spec"]["runPolicy"] == {"cleanPodPolicy": "Running"}
    assert set(copied(document, ARENA)["spec"]) == {"cleanPodPolicy", "pytorchReplicaSpecs"}
    assert copied(document, ARENA)["spec"]["cleanPodPolicy"] == "Running"


def test_the_hub_owns_ttl_holds_and_managed_by() -> None:
    policy = {
        "suspend": True,
        "managedBy": "kueue.x-k8s.io/multikueue",
        "ttlSecondsAfterFinished": 60,
        "activeDeadlineSeconds": 100,
        "backoffLimit": 2,
        "schedulingPolicy": {"minAvailable": 2, "queue": "q"},
    }
    document = pytorchjob(
        runPolicy=policy, annotations={"scheduling.x-k8s.io/suspend": "true"}, ttlSecondsAfterFinished=60
    )

    modern, arena = copied(document), copied(document, ARENA)

    assert modern["spec"]["runPolicy"] == {
        "activeDeadlineSeconds": 100,
        "backoffLimit": 2,
        "schedulingPolicy": {"minAvailable": 2, "queue": "q"},
    }
    assert "ttlSecondsAfterFinished" not in modern["spec"]
    assert set(arena["spec"]) == {"activeDeadlineSeconds", "backoffLimit", "pytorchReplicaSpecs"}
    for document in (modern, arena):
        assert "scheduling.x-k8s.io/suspend" not in document["metadata"]["annotations"]


def test_elastic_policy_reaches_a_member_that_knows_it() -> None:
    document = copied(samples.job("elastic-etcd-companions.yaml"))

    assert document["spec"]["elasticPolicy"]["minReplicas"] == 2
    assert "nprocPerNode" not in document["spec"]


@pytest.mark.parametrize(
    ("value", "refused"),
    [
        *((None, False), ("auto", False), ("1", False), (1, False), ("8", True), (4, True)),
        *(("", False), ("\u00b2", False), ("-1", False), ("9" * 5000, False)),  # text that only looks like a number
    ],
)
def test_arena_refuses_a_number_of_processes_that_would_change_the_world_size(value: Any, refused: bool) -> None:
    job = a_job(nprocPerNode=value)

    assert bool(why_not(job, ARENA)) is refused
    assert why_not(job, TRAINING_OPERATOR) == ""


def test_what_arena_merely_does_not_read_is_a_warning() -> None:
    made = member_copy(a_job(nprocPerNode="auto"), ARENA, "muster", IDENTITY)

    assert made.warnings == ("spec.nprocPerNode auto is not read by this member's operator",)


def test_an_unknown_dialect_is_refused() -> None:
    assert why_not(a_job(), "") == ("its PyTorchJob dialect is not known: install the training operator there")


# --- roles


def test_replicas_are_written_out() -> None:
    document = copied(samples.job("missing-replicas-no-resources.yaml"))

    roles = document["spec"]["pytorchReplicaSpecs"]
    assert {name: spec["replicas"] for name, spec in roles.items()} == {"Master": 1, "Worker": 1}


def test_mixed_scheduler_names_become_one() -> None:
    """Master names default-scheduler, Worker names none: the legacy operator would set none, the other only one."""
    assert {t["spec"]["schedulerName"] for t in templates(copied(example("pytorchjob.yaml")))} == {"muster"}
    bare = copied(example("pytorchjob.yaml"), ARENA, "")
    assert {t["spec"]["schedulerName"] for t in templates(bare)} == {"default-scheduler"}


def test_roles_are_told_apart_by_label_and_users_labels_stay() -> None:
    roles = copied(example("pytorchjob.yaml"))["spec"]["pytorchReplicaSpecs"]

    assert roles["Master"]["template"]["metadata"]["labels"] == {
        "app": "pytorchjob",
        "muster.dev/managed": "true",
        "scheduling.x-k8s.io/pod-group": "pytorch-test",
        "muster.dev/role": "master",
    }
    assert roles["Worker"]["template"]["metadata"]["labels"]["muster.dev/role"] == "worker"


def test_a_null_limit_does_not_travel() -> None:
    [master, worker] = templates(copied(samples.job("null-limit-zero-quantity.yaml")))

    assert "cpu" not in master["spec"]["containers"][0]["resources"]["limits"]
    assert worker["spec"]["containers"][0]["resources"]["limits"]["cpu"] == 12


def test_gang_labels_of_the_users_own_are_left_out_with_a_warning() -> None:
    grouped = role()
    grouped["template"]["metadata"] = {"labels": {"pod-group.scheduling.sigs.k8s.io/name": "mine", "app": "x"}}

    made = member_copy(a_job(worker=grouped), TRAINING_OPERATOR, "muster", IDENTITY)

    labels = made.document["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["metadata"]["labels"]
    assert "pod-group.scheduling.sigs.k8s.io/name" not in labels
    assert labels["app"] == "x"
    assert made.warnings == ("pod label pod-group.scheduling.sigs.k8s.io/name is left out: the gang is the whole job",)


# --- metadata


def test_nothing_of_the_hubs_own_travels() -> None:
    document = example("pytorchjob.yaml")
    document["metadata"] |= {
        "uid": "u",
        "resourceVersion": "1",
        "generation": 4,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "managedFields": [{}],
        "ownerReferences": [{}],
        "finalizers": ["muster.dev/cleanup"],
        "annotations": {"muster.dev/id": "forged", "note": "kept"},
    }
    document["status"] = {"conditions": []}

    made = copied(document)

    assert made["metadata"] == {
        "name": "pytorch-test",
        "namespace": "default",
        "labels": {"app": "pytorchjob", "muster.dev/managed": "true"},
        "annotations": {"note": "kept", **IDENTITY_ANNOTATIONS},
    }
    assert "status" not in made


def test_a_namespace_is_ours_but_no_jobs() -> None:
    assert marks(member_namespace("team-a", "hub-1")) == {"muster.dev/hub-id": "hub-1"}


# --- PodGroup and reservation


def test_the_pod_group_has_the_jobs_name_and_minimum() -> None:
    group = member_pod_group(read(samples.job("anchors-eight-rdma-min-available.yaml")), IDENTITY)

    assert (group["metadata"]["namespace"], group["metadata"]["name"]) == ("team-a", "diffusion-anchors")
    assert group["spec"] == {"minMember": 5, "scheduleTimeoutSeconds": 300}
    assert marks(group) == IDENTITY_ANNOTATIONS


@pytest.mark.parametrize("dialect", [TRAINING_OPERATOR, ARENA])
def test_the_reservation_asks_with_the_very_templates_of_the_copy(dialect: str) -> None:
    job = read(samples.job("anchors-eight-rdma-min-available.yaml"))
    made = member_copy(job, dialect, "muster", IDENTITY)

    reservation = member_reservation(job, made, IDENTITY)

    assert reservation.metadata.name == "pytorch-test-x7k2-3"
    assert reservation.metadata.namespace == "muster-system"
    assert reservation.metadata.annotations == IDENTITY_ANNOTATIONS
    assert reservation.spec.state == "Pending"
    assert reservation.spec.min_member == 5
    assert [(r.name, r.count, r.min_count) for r in reservation.spec.roles] == [("master", 1, 1), ("worker", 6, 4)]
    assert [r.template for r in reservation.spec.roles] == templates(made.document)
    assert (reservation.spec.job_namespace, reservation.spec.job_name) == ("team-a", "diffusion-anchors")


def test_a_component_records_its_request_exactly() -> None:
    for name in VALID:
        job = read(samples.job(name))
        assert [parse_resources(c.request) for c in job.components()] == [r.request for r in job.roles]


# --- dialects are told from the member's schema


def test_the_dialect_is_told_by_run_policy_in_the_schema() -> None:
    def schema(**properties: Any) -> dict[str, Any]:
        return {"properties": {"spec": {"properties": properties}}}

    assert detect_dialect(schema(runPolicy={}, pytorchReplicaSpecs={})) == TRAINING_OPERATOR
    assert detect_dialect(schema(cleanPodPolicy={}, pytorchReplicaSpecs={})) == ARENA
    assert detect_dialect(schema()) == ""
    assert detect_dialect({}) == ""


def test_epochs_make_different_reservations() -> None:
    job = a_job()
    made = member_copy(job, TRAINING_OPERATOR, "muster", IDENTITY)

    names = {member_reservation(job, made, Identity("hub-1", "x", epoch)).metadata.name for epoch in (1, 2, 11)}

    assert names == {"x-1", "x-2", "x-11"}
