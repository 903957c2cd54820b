"""The stand-in training operator: what it makes of a job, in both dialects, pass by pass."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from hack.operator.job import JobInvalid, JobObject, Role, TrainingJob, parse_job
from hack.operator.pods import Gang, pod, service
from hack.operator.reconcile import Plan, reconcile
from hack.operator.status import ReplicaPod
from kube.objects.meta import ObjectMeta
from tests import samples

NOW = datetime(2026, 8, 1, 12, 0, 0, tzinfo=UTC)
CRD = Path(__file__).parents[2] / "hack" / "operator" / "crds" / "arena-pytorchjobs.yaml"


def template(**spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "pytorch", "image": "train:1"}], **spec}}


def document(
    *,
    workers: int | None = 2,
    master: bool = True,
    restart: str = "OnFailure",
    policy: dict[str, Any] | None = None,
    legacy: bool = False,
    **spec: Any,
) -> JobObject:
    roles: dict[str, Any] = {}
    if master:
        roles["Master"] = {"replicas": 1, "restartPolicy": restart, "template": template()}
    if workers is not None:
        roles["Worker"] = {"replicas": workers, "restartPolicy": restart, "template": template()}
    placed = (policy or {}) if legacy else {"runPolicy": policy or {}}
    return JobObject(
        ObjectMeta(namespace="ns", name="job", uid="u1", resource_version="1", annotations={"a": "1"}),
        {"pytorchReplicaSpecs": roles, **placed, **spec},
    )


def parsed(job: JobObject, dialect: Any = "training-operator") -> TrainingJob:
    return parse_job(job, dialect)


def env_of(made: dict[str, Any], container: int = 0) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in made["spec"]["containers"][container]["env"]}


class Member:
    """A job's life in a member: passes, and pods that do what the story says."""

    def __init__(self, job: JobObject, dialect: Any = "training-operator", gang: Gang | None = None) -> None:
        self.job = job
        self.dialect = dialect
        self.gang = gang
        self.pods: dict[str, ReplicaPod] = {}
        self.services: set[str] = set()
        self.now = NOW

    def a_pass(self, order: Sequence[str] = ("Master", "Worker")) -> Plan:
        plan = reconcile(
            self.job,
            self.pods.values(),
            self.services,
            self.now,
            dialect=self.dialect,
            role_order=order,
            gang=self.gang,
        )
        for gone in plan.delete_pods:
            del self.pods[gone.metadata.name]
        self.services -= set(plan.delete_services)
        for made in plan.create_pods:
            metadata = msgspec.convert(made["metadata"], ObjectMeta)
            assert metadata.name not in self.pods
            self.pods[metadata.name] = ReplicaPod(
                metadata, msgspec.convert({"phase": "Pending"}, type(ReplicaPod(metadata).status))
            )
        self.services |= {made["metadata"]["name"] for made in plan.create_services}
        if plan.status is not None:
            self.job = msgspec.structs.replace(self.job, status=plan.status)
        return plan

    def set(self, name: str, phase: str, *, exit_code: int | None = None, restarts: int = 0) -> None:
        state = {} if exit_code is None else {"terminated": {"exitCode": exit_code}}
        containers = [{"name": "pytorch", "restartCount": restarts, "state": state}]
        status = msgspec.convert({"phase": phase, "containerStatuses": containers}, type(self.pods[name].status))
        self.pods[name] = msgspec.structs.replace(self.pods[name], status=status)

    def all_run(self) -> None:
        for name in self.pods:
            self.set(name, "Running")

    @property
    def conditions(self) -> list[tuple[str, str, str, str]]:
        found = (self.job.status or {}).get("conditions", [])
        return [(each["type"], each["status"], each["reason"], each["message"]) for each in found]

    @property
    def state(self) -> str:
        """The STATE column: the type of the last condition."""
        return self.conditions[-1][0] if self.conditions else ""

    @property
    def replica_statuses(self) -> dict[str, Any]:
        found: dict[str, Any] = (self.job.status or {})["replicaStatuses"]
        return {role: {k: v for k, v in each.items() if k != "selector"} for role, each in found.items()}


# --- pods and Services ---


def test_pods_have_the_operators_names_owner_and_both_label_families() -> None:
    job = parsed(document())
    made = pod(job, job.roles["Worker"], 1)
    assert made["metadata"]["name"] == "job-worker-1"
    assert made["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "name": "job",
            "uid": "u1",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    assert made["metadata"]["labels"] == {
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
        "training.kubeflow.org/job-name": "job",
        "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/replica-index": "1",
        "group-name": "kubeflow.org",
        "controller-name": "pytorch-operator",
        "job-name": "job",
        "pytorch-job-name": "job",
        "pytorch-replica-type": "worker",
        "pytorch-replica-index": "1",
    }
    master = pod(job, job.roles["Master"], 0)["metadata"]
    assert master["name"] == "job-master-0"
    assert master["labels"]["training.kubeflow.org/job-role"] == master["labels"]["job-role"] == "master"


def test_without_a_master_the_first_worker_plays_it_and_nobody_waits_for_one() -> None:
    job = parsed(document(master=False))
    roles = [pod(job, job.roles["Worker"], i)["metadata"]["labels"].get("job-role") for i in range(2)]
    assert roles == ["master", None]
    assert "initContainers" not in pod(job, job.roles["Worker"], 0)["spec"]


def test_environment_of_the_newer_dialect() -> None:
    job = parsed(document(nprocPerNode="8"))
    assert env_of(pod(job, job.roles["Worker"], 1)) == {
        "PYTHONUNBUFFERED": "1",
        "MASTER_PORT": "23456",
        "PET_MASTER_PORT": "23456",
        "MASTER_ADDR": "job-master-0",
        "PET_MASTER_ADDR": "job-master-0",
        "WORLD_SIZE": "24",
        "RANK": "2",
        "PET_NODE_RANK": "2",
        "PET_NPROC_PER_NODE": "8",
        "PET_NNODES": "3",
    }
    assert env_of(pod(job, job.roles["Master"], 0))["RANK"] == "0"


def test_environment_of_the_legacy_dialect() -> None:
    job = parsed(document(legacy=True), "arena")
    assert env_of(pod(job, job.roles["Master"], 0)) == {
        "MASTER_PORT": "23456",
        "MASTER_ADDR": "localhost",
        "WORLD_SIZE": "3",
        "RANK": "0",
        "PYTHONUNBUFFERED": "0",
    }
    assert env_of(pod(job, job.roles["Worker"], 0))["MASTER_ADDR"] == "job-master-0"


def test_environment_of_an_elastic_job() -> None:
    job = parsed(samples_job("elastic-etcd-companions.yaml"))
    env = env_of(pod(job, job.roles["Worker"], 0))
    assert {name: env[name] for name in env if name.startswith("PET_")} == {
        "PET_NPROC_PER_NODE": "auto",
        "PET_RDZV_ENDPOINT": "vit-rdzv-store:2379",
        "PET_RDZV_BACKEND": "etcd-v2",
        "PET_NNODES": "2:8",
        "PET_MAX_RESTARTS": "20",
    }
    assert "RANK" not in env


def samples_job(name: str) -> JobObject:
    found = samples.job(name)
    return JobObject(msgspec.convert(found["metadata"] | {"uid": "u1"}, ObjectMeta), found["spec"])


def test_workers_wait_for_the_masters_name_in_an_init_container() -> None:
    job = parsed(document())
    [init] = pod(job, job.roles["Worker"], 0)["spec"]["initContainers"]
    assert init["name"] == "init-pytorch"
    assert init["resources"]["requests"] == {"cpu": "50m", "memory": "10Mi"}
    assert "nslookup job-master-0" in init["command"][2]
    assert "initContainers" not in pod(job, job.roles["Master"], 0)["spec"]


def test_the_template_is_kept_but_for_its_name_and_restart_policy() -> None:
    job = document()
    job.spec["pytorchReplicaSpecs"]["Master"]["template"] = {
        "metadata": {"name": "other", "labels": {"app": "x"}, "annotations": {"muster.dev/id": "j"}},
        "spec": {
            "restartPolicy": "Always",
            "schedulerName": "muster",
            "containers": [
                {
                    "name": "pytorch",
                    "image": "i",
                    "env": [{"name": "MINE", "value": "1"}],
                    "resources": {"limits": {"cpu": None, "memory": "1Gi"}},
                    "ports": [{"name": "pytorchjob-port", "containerPort": 1234}],
                }
            ],
        },
    }
    given = parsed(job)
    made = pod(given, given.roles["Master"], 0)
    assert made["metadata"]["name"] == "job-master-0"
    assert made["metadata"]["labels"]["app"] == "x"
    assert made["metadata"]["annotations"] == {"muster.dev/id": "j"}
    assert made["spec"]["restartPolicy"] == "OnFailure"
    assert made["spec"]["schedulerName"] == "muster"
    assert made["spec"]["containers"][0]["resources"] == {"limits": {"memory": "1Gi"}}
    assert env_of(made)["MINE"] == "1"
    assert env_of(made)["MASTER_PORT"] == "1234"
    # The stored job is left as written.
    assert len(job.spec["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["env"]) == 1


@pytest.mark.parametrize(
    ("written", "made"),
    [("Never", "Never"), ("OnFailure", "OnFailure"), ("Always", "Always"), ("ExitCode", "Never"), ("", "OnFailure")],
)
def test_exit_code_is_never_to_the_kubelet(written: str, made: str) -> None:
    job = parsed(document(restart=written))
    assert pod(job, job.roles["Worker"], 0)["spec"]["restartPolicy"] == made


def test_every_replica_has_a_headless_service_and_in_the_legacy_dialect_the_master_alone() -> None:
    job = parsed(document())
    made = service(job, job.roles["Worker"], 1)
    assert made is not None
    assert made["metadata"]["name"] == "job-worker-1"
    assert made["spec"]["clusterIP"] == "None"
    assert made["spec"]["ports"] == [{"name": "pytorchjob-port", "port": 23456}]
    labels = pod(job, job.roles["Worker"], 1)["metadata"]["labels"]
    assert made["spec"]["selector"].items() <= labels.items()
    legacy = parsed(document(legacy=True), "arena")
    assert service(legacy, legacy.roles["Worker"], 1) is None
    assert service(legacy, legacy.roles["Master"], 0) is not None


def test_with_the_gang_flag_pods_are_labelled_and_empty_scheduler_names_filled() -> None:
    job = document()
    job.spec["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["schedulerName"] = "default-scheduler"
    given, gang = parsed(job), Gang("gangs")
    master, worker = pod(given, given.roles["Master"], 0, gang), pod(given, given.roles["Worker"], 0, gang)
    assert master["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "job"
    assert (master["spec"]["schedulerName"], worker["spec"]["schedulerName"]) == ("default-scheduler", "gangs")
    # Legacy: one foreign name anywhere, and none is set.
    legacy = parsed(job, "arena")
    worker = pod(legacy, legacy.roles["Worker"], 0, gang)
    assert worker["metadata"]["annotations"] == {"scheduling.k8s.io/group-name": "job"}
    assert "schedulerName" not in worker["spec"]


# --- what is refused, and where the policy is read ---


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("invalid-lower-case-master.yaml", "pytorchReplicaSpecs[master]: must be Master or Worker"),
        ("invalid-name-not-dns1035.yaml", "'7b-finetune' is not a DNS-1035 label"),
        ("invalid-negative-replicas.yaml", "pytorchReplicaSpecs[Worker].replicas: must be at least 1"),
        ("missing-replicas-no-resources.yaml", "pytorchReplicaSpecs[Master].replicas: must be 1"),
    ],
)
def test_the_newer_dialect_refuses_what_its_webhook_refuses(name: str, complaint: str) -> None:
    with pytest.raises(JobInvalid) as refused:
        parsed(samples_job(name))
    assert complaint in str(refused.value)
    plan = reconcile(samples_job(name), [], [], NOW, dialect="training-operator")
    assert plan.create_pods == []
    assert plan.status is not None
    assert plan.status["conditions"][-1]["reason"] == "PyTorchJobFailedValidation"


def test_the_legacy_dialect_takes_missing_replicas_and_any_case_but_wants_a_master() -> None:
    assert parsed(samples_job("missing-replicas-no-resources.yaml"), "arena").total == 2
    assert set(parsed(samples_job("invalid-lower-case-master.yaml"), "arena").roles) == {"Master", "Worker"}
    with pytest.raises(JobInvalid, match="Master is missing"):
        parsed(samples_job("elastic-etcd-companions.yaml"), "arena")


@pytest.mark.parametrize(
    "spec", [{"pytorchReplicaSpecs": 3}, {"pytorchReplicaSpecs": {"Master": {"template": {"spec": 1}}}}]
)
def test_nonsense_is_a_complaint_and_not_a_crash(spec: dict[str, Any]) -> None:
    with pytest.raises(JobInvalid):
        parsed(JobObject(ObjectMeta(name="job"), spec))


def test_each_dialect_reads_the_policy_in_its_own_place() -> None:
    both = samples_job("null-limit-zero-quantity.yaml")
    newer, legacy = parsed(both), parsed(both, "arena")
    assert (newer.clean_pod_policy, newer.ttl_seconds) == ("Running", 900)
    assert (legacy.clean_pod_policy, legacy.ttl_seconds) == ("All", 60)


@pytest.mark.parametrize(
    ("given", "filled"), [({}, (6, 6)), ({"minReplicas": 2}, (2, 2)), ({"maxReplicas": 9}, (9, 9))]
)
def test_elastic_bounds_copy_each_other(given: dict[str, int], filled: tuple[int, int]) -> None:
    job = parsed(document(workers=6, elasticPolicy=given))
    assert job.elastic is not None
    assert (job.elastic["minReplicas"], job.elastic["maxReplicas"]) == filled


# --- a job's life ---


def test_types_come_in_the_order_given_and_all_pods_at_once() -> None:
    plan = Member(document()).a_pass(("Worker", "Master"))
    names = [made["metadata"]["name"] for made in plan.create_pods]
    assert names == ["job-worker-0", "job-worker-1", "job-master-0"]
    assert [made["metadata"]["name"] for made in plan.create_services] == names


@pytest.mark.parametrize("dialect", ["training-operator", "arena"])
def test_from_created_to_succeeded(dialect: Any) -> None:
    member = Member(document(legacy=dialect == "arena"), dialect)
    member.a_pass()
    assert member.conditions == [("Created", "True", "PyTorchJobCreated", "PyTorchJob job is created.")]
    assert member.replica_statuses == {"Master": {}, "Worker": {}}
    assert (member.job.status or {})["startTime"] == "2026-08-01T12:00:00Z"
    assert member.a_pass().status is None
    # Running needs the Master alone.
    member.set("job-worker-0", "Running")
    member.a_pass()
    assert member.state == "Created"
    member.set("job-master-0", "Running")
    member.a_pass()
    assert member.conditions[-1] == ("Running", "True", "PyTorchJobRunning", "PyTorchJob job is running.")
    assert member.replica_statuses == {"Master": {"active": 1}, "Worker": {"active": 1}}
    # The Master's success is the job's, although workers still run.
    member.set("job-master-0", "Succeeded")
    member.now += timedelta(minutes=1)
    member.a_pass()
    assert member.conditions[1:] == [
        ("Running", "False", "PyTorchJobRunning", "PyTorchJob job is running."),
        ("Succeeded", "True", "PyTorchJobSucceeded", "PyTorchJob job is successfully completed."),
    ]
    assert (member.job.status or {})["completionTime"] == "2026-08-01T12:01:00Z"
    # cleanPodPolicy None: workers stay; active ones are written off as succeeded.
    member.a_pass()
    assert sorted(member.pods) == ["job-master-0", "job-worker-0", "job-worker-1"]
    assert member.replica_statuses == {"Master": {"succeeded": 1}, "Worker": {"succeeded": 1}}
    assert member.a_pass().status is None


def test_without_a_master_all_workers_have_to_succeed() -> None:
    member = Member(document(master=False))
    member.a_pass()
    member.all_run()
    member.a_pass()
    assert member.conditions[-1][3] == "PyTorchJob ns/job is running."
    member.set("job-worker-0", "Succeeded")
    member.a_pass()
    assert member.state == "Running"
    member.set("job-worker-1", "Succeeded")
    member.a_pass()
    assert member.conditions[-1][3] == "PyTorchJob ns/job successfully completed."


def test_an_elastic_job_succeeds_with_any_worker() -> None:
    member = Member(document(master=False, elasticPolicy={}))
    member.a_pass()
    member.all_run()
    member.set("job-worker-1", "Succeeded")
    member.a_pass()
    assert member.state == "Succeeded"


@pytest.mark.parametrize(
    ("policy", "left"),
    [("None", ["job-master-0", "job-worker-0", "job-worker-1"]), ("Running", ["job-master-0"]), ("All", [])],
)
def test_clean_pod_policy(policy: str, left: list[str]) -> None:
    member = Member(document(policy={"cleanPodPolicy": policy}))
    member.a_pass()
    member.set("job-master-0", "Succeeded")
    member.set("job-worker-0", "Running")
    member.a_pass()
    member.a_pass()
    assert sorted(member.pods) == left
    assert sorted(member.services) == left


def test_the_ttl_deletes_the_job() -> None:
    member = Member(document(policy={"ttlSecondsAfterFinished": 60}))
    member.a_pass()
    member.set("job-master-0", "Succeeded")
    member.a_pass()
    member.now += timedelta(seconds=20)
    plan = member.a_pass()
    assert (plan.delete_job, plan.again_after) == (False, 40.0)
    member.now += timedelta(seconds=40)
    assert member.a_pass().delete_job


@pytest.mark.parametrize("restart", ["OnFailure", "Always"])
def test_a_failed_pod_is_made_again_under_its_name(restart: str) -> None:
    member = Member(document(restart=restart))
    member.a_pass()
    member.all_run()
    member.a_pass()
    member.set("job-worker-1", "Failed", exit_code=1)
    member.a_pass()
    # Running and Restarting replace each other.
    assert [each[0] for each in member.conditions] == ["Created", "Restarting"]
    assert member.conditions[-1][3] == "PyTorchJob job is restarting because 1 Worker replica(s) failed."
    assert "job-worker-1" not in member.pods
    [again] = member.a_pass().create_pods
    assert again["metadata"]["name"] == "job-worker-1"
    member.a_pass()
    assert [each[0] for each in member.conditions] == ["Created", "Running"]


def test_the_masters_running_hides_a_restart_where_its_type_comes_last() -> None:
    # Go's map order decides between the two; both happen.
    member = Member(document())
    member.a_pass()
    member.all_run()
    member.set("job-worker-1", "Failed", exit_code=1)
    member.a_pass(("Worker", "Master"))
    assert [each[0] for each in member.conditions] == ["Created", "Running"]
    assert "job-worker-1" not in member.pods


def test_never_means_one_failure_fails_the_job_for_good() -> None:
    member = Member(document(restart="Never"))
    member.a_pass()
    member.all_run()
    member.set("job-worker-1", "Failed", exit_code=137)
    member.a_pass()
    assert member.conditions[-1] == (
        "Failed",
        "True",
        "PyTorchJobFailed",
        "PyTorchJob job is failed because 1 Worker replica(s) failed.",
    )
    member.set("job-master-0", "Succeeded")
    member.a_pass()
    assert member.state == "Failed"
    assert member.a_pass().create_pods == []


@pytest.mark.parametrize(("code", "state"), [(137, "Restarting"), (128, "Restarting"), (127, "Failed"), (1, "Failed")])
@pytest.mark.parametrize("dialect", ["training-operator", "arena"])
def test_exit_codes_from_128_restart_and_lower_ones_fail(dialect: Any, code: int, state: str) -> None:
    member = Member(document(restart="ExitCode", legacy=dialect == "arena"), dialect)
    member.a_pass()
    member.all_run()
    member.set("job-worker-0", "Failed", exit_code=code)
    member.a_pass()
    assert member.state == state
    assert ("job-worker-0" in member.pods) == (state == "Failed")


def test_in_the_legacy_dialect_any_other_failed_pod_fails_the_job() -> None:
    member = Member(document(legacy=True, restart="OnFailure"), "arena")
    member.a_pass()
    member.all_run()
    member.set("job-worker-0", "Failed")
    member.a_pass()
    assert member.state == "Failed"


@pytest.mark.parametrize(("limit", "restarts", "failed"), [(0, 0, False), (0, 1, True), (3, 2, False), (3, 3, True)])
def test_the_backoff_limit_counts_restarts_of_running_pods(limit: int, restarts: int, failed: bool) -> None:
    member = Member(document(policy={"backoffLimit": limit}))
    member.a_pass()
    member.all_run()
    member.set("job-worker-0", "Running", restarts=restarts)
    member.a_pass()
    assert (member.state == "Failed") is failed
    if failed:
        assert member.conditions[-1][3] == "Job job has failed because it has reached the specified backoff limit"
        # Whatever cleanPodPolicy says.
        assert member.pods == {}
        assert member.services == set()


def test_the_active_deadline_counts_from_the_start() -> None:
    member = Member(document(policy={"activeDeadlineSeconds": 100}))
    member.a_pass()
    member.now += timedelta(seconds=99)
    assert member.a_pass().again_after == 1.0
    member.now += timedelta(seconds=1)
    member.a_pass()
    assert member.conditions[-1][3] == "Job job has failed because it was active longer than specified deadline"
    assert member.pods == {}


def test_a_suspended_job_has_nothing_and_begins_anew_when_resumed() -> None:
    member = Member(document(policy={"suspend": True}), gang=Gang("s"))
    assert member.a_pass().create_pods == []
    assert [each[0] for each in member.conditions] == ["Created", "Suspended"]
    member.job.spec["runPolicy"]["suspend"] = False
    member.now += timedelta(hours=1)
    member.a_pass()
    member.all_run()
    member.a_pass()
    assert [each[:2] for each in member.conditions] == [
        ("Created", "True"),
        ("Suspended", "False"),
        ("Running", "True"),
    ]
    assert member.conditions[1][2] == "PyTorchJobResumed"
    assert (member.job.status or {})["startTime"] == "2026-08-01T13:00:00Z"
    member.job.spec["runPolicy"]["suspend"] = True
    plan = member.a_pass()
    assert plan.delete_pod_group
    assert member.pods == {}
    assert member.services == set()
    assert [each[:2] for each in member.conditions] == [
        ("Created", "True"),
        ("Running", "False"),
        ("Suspended", "True"),
    ]


def test_the_legacy_dialect_knows_no_suspension() -> None:
    member = Member(document(legacy=True, policy={"suspend": True}), "arena")
    assert len(member.a_pass().create_pods) == 3


def test_a_job_managed_by_someone_else_is_left_alone() -> None:
    member = Member(document(policy={"managedBy": "kueue.x-k8s.io/multikueue"}))
    plan = member.a_pass()
    assert (plan.create_pods, plan.status) == ([], None)
    assert len(Member(document(policy={"managedBy": "kubeflow.org/training-operator"})).a_pass().create_pods) == 3


def test_a_job_being_deleted_is_left_to_the_garbage_collector() -> None:
    member = Member(document())
    member.job.metadata.deletion_timestamp = "2026-08-01T12:00:00Z"
    assert member.a_pass() == Plan()


def test_fewer_replicas_take_pods_away() -> None:
    member = Member(document(workers=3))
    member.a_pass()
    member.job.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = 1
    member.a_pass()
    assert sorted(member.pods) == ["job-master-0", "job-worker-0"]


def test_an_evicted_pod_counts_as_failed_while_it_ends_and_is_made_again_when_it_is_gone() -> None:
    member = Member(document())
    member.a_pass()
    member.all_run()
    member.a_pass()
    member.pods["job-worker-0"].metadata.deletion_timestamp = "2026-08-01T12:00:00Z"
    assert member.a_pass().create_pods == []
    assert member.replica_statuses["Worker"] == {"active": 1, "failed": 1}
    del member.pods["job-worker-0"]
    [again] = member.a_pass().create_pods
    assert again["metadata"]["name"] == "job-worker-0"


def test_counts_carry_the_selector_in_the_newer_dialect_only() -> None:
    for dialect, selector in (
        (
            "training-operator",
            ",".join(
                f"training.kubeflow.org/{key}={value}"
                for key, value in (
                    ("job-name", "job"),
                    ("operator-name", "pytorchjob-controller"),
                    ("replica-type", "master"),
                )
            ),
        ),
        ("arena", None),
    ):
        member = Member(document(legacy=dialect == "arena"), dialect)
        member.a_pass()
        assert (member.job.status or {})["replicaStatuses"]["Master"].get("selector") == selector


# --- PodGroup ---


def test_the_pod_group_is_the_jobs_and_ignores_elastic_minimum() -> None:
    plan = Member(document(workers=4, elasticPolicy={"minReplicas": 2, "maxReplicas": 4}), gang=Gang("s")).a_pass()
    assert plan.pod_group is not None
    assert plan.pod_group["metadata"]["name"] == "job"
    assert plan.pod_group["metadata"]["annotations"] == {"a": "1"}
    assert plan.pod_group["spec"]["minMember"] == 5


def test_its_minimum_is_what_the_scheduling_policy_says() -> None:
    member = Member(samples_job("anchors-eight-rdma-min-available.yaml"), gang=Gang("s"))
    member.job.spec["runPolicy"]["suspend"] = False
    group = member.a_pass().pod_group
    assert group is not None
    assert group["spec"]["minMember"] == 5
    assert group["spec"]["scheduleTimeoutSeconds"] == 300
    assert group["spec"]["minResources"]["nvidia.com/gpu"] == "40"


def test_its_resources_lose_limits_beside_requests_as_the_operators_do() -> None:
    job = document(workers=None)
    job.spec["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["resources"] = {
        "requests": {"cpu": "500m"},
        "limits": {"nvidia.com/gpu": 1},
    }
    group = Member(job, gang=Gang("s")).a_pass().pod_group
    assert group is not None
    assert group["spec"]["minResources"] == {"cpu": "500m"}


def test_it_goes_when_the_job_ends() -> None:
    member = Member(document(), gang=Gang("s"))
    member.a_pass()
    member.set("job-master-0", "Succeeded")
    member.a_pass()
    assert member.a_pass().delete_pod_group


# --- the legacy CRD ---


def test_the_legacy_crd_has_the_legacy_policy_fields_and_demands_its_status() -> None:
    crd = yaml.safe_load(CRD.read_text())
    [version] = crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]
    assert sorted(schema["spec"]["properties"]) == [
        "activeDeadlineSeconds",
        "backoffLimit",
        "cleanPodPolicy",
        "pytorchReplicaSpecs",
        "ttlSecondsAfterFinished",
    ]
    assert schema["status"]["required"] == ["conditions", "replicaStatuses"]
    for job in (document(legacy=True), document(legacy=True, master=False)):
        member = Member(job, "arena")
        member.a_pass()
        assert set(schema["status"]["required"]) <= set(member.job.status or {})


def test_roles_are_plain_data() -> None:
    role = parsed(document()).roles["Worker"]
    assert role == Role("Worker", 2, "OnFailure", role.template)
