"""The small parts around the cycle: pauses, settings, the store of bindings, statuses, live reads, metrics."""

import msgspec
import pytest

from dispatcher.backoff import Backoff
from dispatcher.binding_status import Waiting, phase, status
from dispatcher.binding_store import BindingStore
from dispatcher.hub_job_status import state, wanted_status
from dispatcher.job_reader import read_job
from dispatcher.live_reads import Subject, read_copy, read_live
from dispatcher.metrics import Metrics
from dispatcher.observations import MemberView
from dispatcher.options import Options, OptionsRefused, check, parse
from dispatcher.steps import Wait
from kube.api.api import PODS
from kube.api.errors import NotFound
from kube.api.reflector import Change
from kube.objects.binding import BindingStatus, ClusterReason, Component, JobRef, ResourceBinding, Result
from kube.objects.meta import ObjectMeta
from tests.unit.dispatcher_attempt_views import spec


class TestBackoff:
    def test_pauses_double_up_to_the_longest(self):
        pauses: Backoff[str] = Backoff(1.0, 5.0)
        assert [pauses.failed("a", 0.0) for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
        assert pauses.left("a", 2.0) == 3.0
        assert pauses.left("b", 2.0) == 0.0
        pauses.forget("a")
        assert len(pauses) == 0

    def test_good_news_end_a_pause_but_not_for_who_always_fails(self):
        pauses: Backoff[str] = Backoff(10.0, 100.0)
        pauses.failed("a", 0.0)
        assert pauses.ease("a", 1.0)
        assert pauses.left("a", 1.0) == 0.0
        for _ in range(4):
            pauses.failed("a", 2.0)
        assert not pauses.ease("a", 3.0)
        assert pauses.ease("a", 13.0), "it has waited long enough to be asked again"


class TestOptions:
    def test_each_field_is_a_flag(self):
        found = parse(["--kubeconfig=/k", "--lease-seconds=20", "--allow-loopback-members", "--answer-seconds=7.5"])
        assert (found.kubeconfig, found.lease_seconds, found.allow_loopback_members, found.answer_seconds) == (
            "/k", 20, True, 7.5,
        )  # fmt: skip

    @pytest.mark.parametrize(
        "fields",
        [
            {"lease_seconds": 6},
            {"answer_seconds": 90.0},
            {"probe_seconds": 20.0},
            {"metrics_listen": "8086"},
            {"retry_seconds": 0.0},
        ],
    )
    def test_what_does_not_go_together_is_refused(self, fields):
        with pytest.raises(OptionsRefused, match="--"):
            check(msgspec.structs.replace(Options(), **fields))

    def test_bad_input_says_why_on_stderr(self, capsys):
        with pytest.raises(SystemExit) as ended:
            parse(["--lease-seconds=1"])
        assert ended.value.code == 2
        assert "--lease-seconds must exceed" in capsys.readouterr().err


def binding(version: int, *, uid: str = "b1", name: str = "x", state: str = "") -> ResourceBinding:
    return ResourceBinding(
        metadata=ObjectMeta(name=f"{name}-pytorchjob", namespace="ns", uid=uid, resource_version=str(version)),
        spec=msgspec.structs.replace(
            spec(state), job=JobRef(api_version="kubeflow.org/v1", kind="PyTorchJob", name=name, uid="u1")
        ),
    )


class TestStore:
    def setup_method(self):
        self.store = BindingStore()
        self.seen: list[tuple[str, str]] = []
        self.store.subscribe(lambda _, old, new: self.seen.append((_version(old), _version(new))))

    def test_our_own_write_counts_before_the_watch_shows_it(self):
        self.store.on_watch(Change.ADDED, None, binding(1))
        self.store.put(binding(3))
        self.store.on_watch(Change.MODIFIED, binding(1), binding(2))
        assert _version(self.store.get(("ns", "x"))) == "3"
        assert self.seen == [("-", "1"), ("1", "3")]

    def test_what_we_deleted_does_not_come_back_by_an_old_event(self):
        self.store.put(binding(1))
        self.store.removed(binding(1))
        self.store.on_watch(Change.MODIFIED, binding(1), binding(2))
        assert self.store.get(("ns", "x")) is None
        self.store.on_watch(Change.DELETED, binding(2), None)
        self.store.put(binding(9, uid="b2"))
        assert self.store.by_id("job-x") is not None

    def test_a_deletion_of_an_older_object_of_the_name_is_not_ours(self):
        self.store.put(binding(5, uid="b2"))
        self.store.on_watch(Change.DELETED, binding(1), None)
        assert self.store.get(("ns", "x")) is not None


def _version(found: ResourceBinding | None) -> str:
    return found.metadata.resource_version if found else "-"


class TestBindingStatus:
    def test_phases(self):
        assert phase(spec(), Waiting()) == "Queued"
        assert phase(spec(), Waiting(wait=Wait(reason="Invalid"))) == "Invalid"
        assert phase(spec(), Waiting(wait=Wait(reason="Suspended"))) == "Held"
        assert phase(spec("Reserving"), Waiting()) == "Reserving"
        assert phase(spec("Landed"), Waiting()) == "Scheduled"
        assert phase(spec("Evicting"), Waiting()) == "Evicting"
        done = Result(state="Failed", cluster="c1", epoch=1)
        assert phase(spec("Finished", result=done), Waiting()) == "Failed"
        assert phase(spec("Landed", deleting=True), Waiting()) == "Deleting"

    def test_why_it_waits_is_one_line_and_one_reason_per_cluster(self):
        why = Waiting(clusters=(ClusterReason(cluster="c1", message="not ready 42s"),), quota="", tried=True)
        found = status(spec(), why, BindingStatus(), "T1", 1)
        assert found.reasons == [ClusterReason(cluster="c1", message="not ready 42s")]
        scheduled = next(c for c in found.conditions if c.type == "Scheduled")
        assert (scheduled.status, scheduled.reason, scheduled.message) == (
            "False",
            "NoClusterFits",
            "c1: not ready 42s",
        )

    def test_a_reason_that_only_ages_is_not_written_again(self):
        """F27."""
        young = Waiting(clusters=(ClusterReason(cluster="c1", message="not ready 42s"),), tried=True)
        old = Waiting(clusters=(ClusterReason(cluster="c1", message="not ready 99s"),), tried=True)
        first = status(spec(), young, BindingStatus(), "T1", 1)
        assert status(spec(), old, first, "T2", 1) == first

    def test_scheduled_names_cluster_and_roles(self):
        placed = msgspec.structs.replace(
            spec("Landed"), components=[Component(name="worker", replicas=2, min_replicas=2)]
        )
        scheduled = next(
            c for c in status(placed, Waiting(), BindingStatus(), "T", 1).conditions if c.type == "Scheduled"
        )
        assert scheduled.message == "Binding has been scheduled successfully. Result: {c1:0,[{worker 2}]}"


JOB = read_job(
    {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "x", "namespace": "ns", "uid": "u1"},
        "spec": {
            "pytorchReplicaSpecs": {
                "Master": {"replicas": 1, "template": {"spec": {"containers": [{"name": "pytorch", "image": "i"}]}}}
            }
        },
    }
).job


class TestHubJobStatus:
    """STATE of `kubectl get pytorchjob` on the hub is the type of the last condition."""

    def test_before_there_is_a_copy_it_is_created(self):
        found = wanted_status(None, JOB, "", spec(), None, "T1")
        assert found is not None
        assert state(found) == "Created"
        assert wanted_status(found, JOB, "", spec(), None, "T2") is None, "nothing new, nothing written"

    def test_in_a_queue_it_says_so_before_the_last_condition(self):
        queued = spec(queued=True)
        found = wanted_status(None, JOB, "", queued, None, "T1")
        assert found is not None
        assert [(c["type"], c["status"]) for c in found["conditions"]] == [("Queuing", "True"), ("Created", "True")]
        admitted = wanted_status(found, JOB, "", spec("Landed", queued=True), None, "T2")
        assert admitted is not None
        assert {c["type"]: c["status"] for c in admitted["conditions"]} == {"Queuing": "False", "Created": "True"}

    def test_the_copys_state_is_the_jobs(self):
        running = {"type": "Running", "status": "True", "reason": "R", "message": "m"}
        found = wanted_status(None, JOB, "", spec("Landed"), {"conditions": [running]}, "T1")
        assert found is not None
        assert state(found) == "Running"

    def test_while_its_member_is_silent_the_last_that_was_seen_stays(self):
        before = {"conditions": [{"type": "Running", "status": "True", "reason": "R", "message": "m"}]}
        assert wanted_status(before, JOB, "", spec("Landed"), None, "T2") is None

    @pytest.mark.parametrize("queued", [False, True])
    @pytest.mark.parametrize("placed", ["Scheduled", "Landed", "Evicting", "Finished"])
    def test_an_edit_that_makes_it_invalid_does_not_hide_what_runs(self, placed, queued):
        copy = {"conditions": [{"type": "Running", "status": "True", "reason": "R", "message": "m"}]}
        running = wanted_status(None, JOB, "", spec(placed, queued=queued), copy, "T1")
        assert running is not None
        edited = wanted_status(running, None, "replicas 0", spec(placed, queued=queued), copy, "T2")
        assert edited is None or state(edited) == "Running"
        assert wanted_status(running, None, "replicas 0", spec(placed, queued=queued), None, "T2") is None, "silent"
        before = wanted_status(None, None, "replicas 0", spec("Reserving", queued=queued), None, "T2")
        assert before is not None
        assert state(before) == "Invalid", "not placed: nothing runs"

    def test_a_recorded_end_is_shown_without_the_copy(self):
        done = Result(state="Failed", cluster="c1", epoch=1, message="lost", completion_time="2026-08-01T12:00:00.5Z")
        found = wanted_status(None, JOB, "", spec("Finished", result=done), None, "T1")
        assert found is not None
        assert (state(found), found["completionTime"]) == ("Failed", "2026-08-01T12:00:00Z")

    def test_an_invalid_job_says_what_is_wrong(self):
        found = wanted_status(None, None, "Worker.replicas must not be negative", spec(), None, "T1")
        assert found is not None
        assert state(found) == "Invalid"
        assert found["conditions"][0]["message"] == "Worker.replicas must not be negative"


class Absent:
    """Answers every GET with 404 and every list with nothing."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    async def get(self, *_: object, **__: object) -> bytes:
        raise NotFound(404, self.reason, "not found")

    async def list(self, resource: object, *_: object, **__: object) -> bytes:
        assert resource == PODS
        return b'{"metadata":{},"items":[]}'


SUBJECT = Subject("h", "id", 1, "ns", "x")


class TestLiveReads:
    async def test_absence_is_proven_by_a_status_that_says_so(self):
        seen = await read_live(Absent("NotFound"), MemberView(cluster="c1"), SUBJECT, timeout=1)  # type: ignore[arg-type]
        assert (seen.live, seen.reservation, seen.copy, seen.pods) == (True, None, None, 0)

    async def test_a_kind_that_is_not_served_proves_nothing(self):
        """F17 (karmada#5406): a removed CRD must not look like a deleted job."""
        with pytest.raises(NotFound):
            await read_copy(Absent(""), SUBJECT, timeout=1)  # type: ignore[arg-type]


class TestMetrics:
    DOCUMENTED = (
        "muster_pending_jobs", "muster_admission_attempts", "muster_admission_attempt_duration_seconds",
        "muster_admitted_jobs", "muster_finished_jobs", "muster_evicted_jobs", "muster_queue_wait_time_seconds",
        "muster_dispatched_jobs", "muster_dispatch_errors", "muster_dispatch_duration_seconds",
        "muster_status_sync_lag_seconds", "muster_queue_used", "muster_queue_min", "muster_queue_max",
        "muster_queue_info", "muster_member_cluster_up", "muster_member_cluster_capacity_age_seconds",
        "muster_unknown_jobs", "muster_leader", "muster_build_info",
    )  # fmt: skip

    def test_the_emitted_set_is_the_documented_one(self):
        assert {family.name for family in Metrics(version="1").registry.collect()} == set(self.DOCUMENTED)

    def test_series_go_with_their_queue_and_member(self):
        metrics = Metrics(version="1")
        metrics.show_members({"c1": (True, 3.0), "c2": (False, None)})
        metrics.show_queues([("root/a", "root", {}, {"cpu": 1000}, {"cpu": 500})], {("root/a", "waiting"): 2})
        text = metrics.text().decode()
        assert 'muster_queue_used{queue="root/a",resource="cpu"} 0.5' in text
        assert 'muster_pending_jobs{queue="root/a",status="waiting"} 2.0' in text
        metrics.show_members({"c1": (True, 3.0)})
        metrics.show_queues([], {})
        text = metrics.text().decode()
        assert "c2" not in text
        assert "root/a" not in text
