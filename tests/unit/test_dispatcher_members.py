"""When a member may be asked, when it may get jobs, and what its caches show of a job."""

import math
from typing import Any

import pytest

from dispatcher.member_caches import CopySeen, MemberCaches, PodNode, PodPhase, PodSeen
from dispatcher.member_health import Health, Periods, conditions, judge
from dispatcher.observations import CopyView, MemberView, ReservationView, Stray
from dispatcher.orphans import verdict
from kube.api.reflector import Change
from kube.objects.meta import Condition, ObjectMeta
from kube.objects.names import EPOCH, HUB_ID, JOB_ID
from kube.objects.reservation import GangReservation, ReservationSpec, ReservationStatus

PERIODS = Periods(silence_seconds=15, heartbeat_seconds=30, steady_seconds=3)


def health(**fields: Any) -> Health:
    """Of a member that is well at t = 100."""
    whole: dict[str, Any] = {
        "answered_at": 99.0, "failure": "", "unsynced": (), "cluster_uid": "k1", "accepted_uid": "k1", "beat_at": 95.0,
        "reported_at": 90.0, "has_report": True,
    }  # fmt: skip
    return Health(**(whole | fields))


class TestHealth:
    def test_a_member_that_answers_beats_and_reports_is_ready_at_once(self):
        found = judge(health(), 100.0, PERIODS)
        assert (found.connection, found.ready, found.reason) == ("Reachable", True, "ClusterReady")
        assert found.report_age == 5.0, "since the heartbeat: a report that is not changed is still true"

    @pytest.mark.parametrize(
        ("fields", "connection", "reason"),
        [
            ({"answered_at": 80.0, "failure": "refused"}, "Unreachable", "ClusterNotReachable"),
            ({"answered_at": -math.inf}, "Unreachable", "ClusterNotReachable"),
            ({"refused": "users[0].exec: …"}, "Unreachable", "KubeconfigRefused"),
            ({"unsynced": ("pods",)}, "Unreachable", "ClusterNotRead"),
            ({"cluster_uid": "k2"}, "Replaced", "ClusterReplaced"),
            ({"beat_at": 60.0}, "Reachable", "ExtenderSilent"),
            ({"beat_at": -math.inf}, "Reachable", "ExtenderSilent"),
            ({"has_report": False}, "Reachable", "NoCapacityReport"),
            ({"missing": "it has no PyTorchJob CRD"}, "Reachable", "CannotRunGangs"),
            ({"other_hub": "it belongs to another hub"}, "Reachable", "OtherHub"),
        ],
    )
    def test_what_is_wrong_is_named(self, fields, connection, reason):
        found = judge(health(**fields), 100.0, PERIODS)
        assert (found.connection, found.ready, found.reason) == (connection, False, reason)
        assert found.message

    def test_an_extender_that_is_down_leaves_the_member_reachable(self):
        """Evictions must work without it."""
        assert judge(health(beat_at=0.0), 100.0, PERIODS).connection == "Reachable"

    def test_back_from_a_failure_it_has_to_be_steady_first(self):
        seen = health()
        assert judge(seen, 100.0, PERIODS).ready
        seen.answered_at = 80.0
        assert not judge(seen, 100.0, PERIODS).ready
        seen.answered_at = seen.beat_at = 101.0
        assert judge(seen, 101.0, PERIODS).reason == "Steadying"
        assert judge(seen, 101.0, PERIODS).connection == "Reachable", "what runs there is followed at once"
        seen.answered_at = 104.0
        assert judge(seen, 104.0, PERIODS).ready

    def test_a_fence_overrules_everything(self):
        assert judge(health(), 100.0, PERIODS, fenced=True).connection == "Fenced"

    def test_conditions_move_their_time_with_their_status_only(self):
        well = judge(health(), 100.0, PERIODS)
        first = conditions(well, [], "T1", 1)
        assert [(c.type, c.status, c.last_transition_time) for c in first] == [
            ("Ready", "True", "T1"), ("CapacityFresh", "True", "T1"),
        ]  # fmt: skip
        assert [c.last_transition_time for c in conditions(well, first, "T2", 1)] == ["T1", "T1"]
        ill = judge(health(beat_at=0.0), 100.0, PERIODS)
        again = conditions(ill, first, "T3", 2)
        assert [(c.status, c.last_transition_time, c.observed_generation) for c in again] == [("False", "T3", 2)] * 2

    def test_conditions_of_others_are_kept(self):
        theirs = Condition(type="Cordoned", status="True", reason="Maintenance")
        assert theirs in conditions(judge(health(), 100.0, PERIODS), [theirs], "T", 1)


def meta(name: str, *, epoch: int = 1, hub: str = "h", job: str = "id", **fields: Any) -> ObjectMeta:
    annotations = {HUB_ID: hub, JOB_ID: job, EPOCH: str(epoch)}
    return ObjectMeta(name=name, namespace="ns", uid=f"uid-{name}-{epoch}", annotations=annotations, **fields)


def gang(epoch: int = 1, *, hub: str = "h") -> GangReservation:
    return GangReservation(
        metadata=ObjectMeta(name=f"id-{epoch}", namespace="muster-system", uid=f"r{epoch}", resource_version="5"),
        spec=ReservationSpec(
            hub_id=hub, job_id="id", epoch=epoch, job_namespace="ns", job_name="x", roles=[], min_member=1
        ),
        status=ReservationStatus(state="Reserved"),
    )


def pod(name: str, phase: str = "Running", *, node: str = "n1", epoch: int = 1) -> PodSeen:
    return PodSeen(metadata=meta(name, epoch=epoch), spec=PodNode(node_name=node), status=PodPhase(phase=phase))


BASE = MemberView(cluster="c1")


class TestCaches:
    def setup_method(self):
        self.told: list[str] = []
        self.caches = MemberCaches("h", self.told.append)

    def test_an_attempt_is_put_together_from_what_is_there(self):
        self.caches.on_reservation(Change.ADDED, None, gang())
        self.caches.on_copy(Change.ADDED, None, CopySeen(metadata=meta("x", resource_version="9")))
        for each in (pod("x-0"), pod("x-1", "Succeeded")):
            self.caches.on_pod(Change.ADDED, None, each)
        seen = self.caches.view(BASE, "id", 1)
        assert seen.reservation == ReservationView(uid="r1", resource_version="5", epoch=1, state="Reserved")
        assert seen.copy == CopyView(uid="uid-x-1", resource_version="9", job_id="id", epoch=1)
        assert (seen.pods, seen.pods_running, seen.live) == (2, 1, False)
        assert set(self.told) == {"id"}

    def test_what_carries_another_hubs_id_is_not_there(self):
        self.caches.on_reservation(Change.ADDED, None, gang(hub="other"))
        self.caches.on_copy(Change.ADDED, None, CopySeen(metadata=meta("x", hub="other")))
        assert not self.caches.has_traces("id")
        assert self.told == []

    def test_everything_else_of_the_id_is_a_stray(self):
        """Rule 8."""
        self.caches.on_reservation(Change.ADDED, None, gang(1))
        self.caches.on_reservation(Change.ADDED, None, gang(2))
        found = self.caches.stray("c1", "id", 2)
        assert found is not None
        assert [r.epoch for r in found.reservations] == [1]
        self.caches.on_reservation(Change.DELETED, gang(1), None)
        assert self.caches.stray("c1", "id", 2) is None

    def test_nothing_is_left_in_memory_of_what_is_gone(self):
        """Invariant 8."""
        for index in range(100):
            copy = CopySeen(metadata=meta("x", job=f"id-{index}"))
            self.caches.on_copy(Change.ADDED, None, copy)
            self.caches.on_copy(Change.DELETED, copy, None)
            self.caches.on_pod(Change.ADDED, None, pod("x-0"))
            self.caches.on_pod(Change.DELETED, pod("x-0"), None)
        self.caches.on_reservation(Change.ADDED, None, gang())
        self.caches.on_reservation(Change.DELETED, gang(), None)
        assert self.caches.ids() == set()

    def test_pod_events_that_change_nothing_wake_nobody(self):
        self.caches.on_pod(Change.ADDED, None, pod("x-0"))
        self.told.clear()
        self.caches.on_pod(Change.MODIFIED, pod("x-0"), pod("x-0"))
        assert self.told == []
        self.caches.on_pod(Change.MODIFIED, pod("x-0"), pod("x-0", "Succeeded"))
        assert self.told == ["id"]


class TestOrphans:
    """Objects of a job that has no binding."""

    PENDING = ReservationView(resource_version="1", epoch=1, state="Reserved")
    COPY = CopyView(uid="c", resource_version="1", job_id="id", epoch=1)

    def test_what_was_never_admitted_is_removed(self):
        assert verdict(Stray(cluster="c1", reservations=(self.PENDING,))) == "Remove"
        assert verdict(Stray(cluster="c1", copy=self.COPY, pods=2)) == "Remove", "a late POST: its pods stay pending"

    def test_what_runs_is_left_and_reported(self):
        """Invariant 7: a hub that lost its data costs no running job."""
        dispatched = ReservationView(resource_version="1", epoch=1, state="Landed", dispatched=True)
        assert verdict(Stray(cluster="c1", reservations=(dispatched,), copy=self.COPY)) == "Report"
        assert verdict(Stray(cluster="c1", copy=self.COPY, pods=2, pods_bound=1)) == "Report"
