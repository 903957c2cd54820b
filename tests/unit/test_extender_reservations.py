"""The life table of a reservation, and which pods of the hub are admitted (PROTOCOL rules 11 to 14)."""

import msgspec
import pytest

from extender import admission, life
from extender.config import CoreConfig
from extender.effects import Outcome, SetReservationStatus
from kube.objects.classes import PriorityClass, RuntimeClass
from kube.objects.reservation import Placement
from kube.objects.resource_quota import ResourceQuota
from tests.unit.extender_objects import HUB, hub_pod, member, node, pod, pod_group, reservation, template
from tests.unit.extender_stage import Stage, copy

NAME = "id-job-1"


@pytest.fixture
def stage() -> Stage:
    return Stage().add(node("a", cpu=4), node("b", cpu=4)).start()


def pods(job: str = "job", epoch: int = 1, **kwargs):
    return [
        hub_pod(job, "master", 0, epoch, **kwargs),
        hub_pod(job, "worker", 0, epoch, **kwargs),
        hub_pod(job, "worker", 1, epoch, **kwargs),
    ]


def dispatch(stage: Stage, name: str = NAME) -> None:
    stage.change_reservation(name, state="Dispatched")


class TestReserve:
    def test_room_is_held_for_the_whole_gang_before_any_pod_exists(self, stage):
        stage.add(reservation())
        assert stage.status(NAME) == "Reserved"
        assert stage.core.metrics().slots == 3
        placements = stage.reservations[NAME].status.placements
        assert sum(place.count for place in placements) == 3
        assert {place.role for place in placements} == {"master", "worker"}

    def test_what_does_not_fit_is_refused_in_numbers(self, stage):
        roles = [{"name": "worker", "count": 9, "minCount": 9, "template": template(cpu="1")}]
        stage.add(reservation(roles=roles))
        assert stage.status(NAME) == "Refused InsufficientResources"
        assert stage.reservations[NAME].status.message == "largest fit 8 of 9 pods: 1 short of cpu"
        assert stage.core.metrics().slots == 0

    def test_two_reservations_that_fit_one_at_a_time(self, stage):
        roles = [{"name": "worker", "count": 5, "minCount": 5, "template": template(cpu="1")}]
        stage.add(reservation("one", roles=roles), reservation("two", roles=roles))
        assert stage.status("id-one-1") == "Reserved"
        assert stage.status("id-two-1") == "Refused InsufficientResources"

    def test_a_template_that_cannot_be_planned_says_what_is_wrong(self, stage):
        roles = [{"name": "worker", "count": 1, "minCount": 1, "template": template(cpu="many")}]
        stage.add(reservation(roles=roles))
        assert stage.status(NAME) == "Refused InvalidTemplate"
        assert "'many'" in stage.reservations[NAME].status.message

    @pytest.mark.parametrize("metadata", [[1], "x", 7, {"labels": [1]}, {"labels": "x"}])
    def test_what_the_schema_lets_through_as_metadata_is_refused_too(self, stage, metadata):
        roles = [{"name": "worker", "count": 1, "minCount": 1, "template": template(cpu="1") | {"metadata": metadata}}]
        stage.add(reservation(roles=roles))
        assert stage.status(NAME) == "Refused InvalidTemplate"
        assert "role worker: metadata" in stage.reservations[NAME].status.message

    def test_a_node_selector_that_is_none_under_a_runtime_class_with_one(self, stage):
        odd = {"spec": {"runtimeClassName": "gpu", "nodeSelector": "x", "containers": []}}
        runtime = {"metadata": {"name": "gpu"}, "handler": "gpu", "scheduling": {"nodeSelector": {"pool": "gpu"}}}
        stage.perform(stage.core.runtime_class_changed(msgspec.convert(runtime, RuntimeClass), stage.now))
        stage.add(reservation(roles=[{"name": "worker", "count": 1, "minCount": 1, "template": odd}]))
        assert stage.status(NAME) == "Refused InvalidTemplate"

    def test_nothing_is_judged_before_the_caches_are_complete(self):
        stage = Stage()
        stage.add(reservation())
        assert not stage.effects
        stage.add(node("a", cpu=8))
        stage.start()
        assert stage.status(NAME) == "Reserved"

    def test_a_quota_that_will_refuse_the_pods_refuses_the_gang(self, stage):
        quota = msgspec.convert(
            {
                "metadata": {"name": "team", "namespace": "default"},
                "status": {"hard": {"requests.cpu": "4", "pods": "10"}, "used": {"requests.cpu": "0"}},
            },
            ResourceQuota,
        )
        stage.perform(stage.core.resource_quota_changed(quota, stage.now))
        stage.add(reservation())  # 5 cpu
        assert stage.status(NAME) == "Refused InsufficientResources"
        assert "quota team is short of requests.cpu" in stage.reservations[NAME].status.message


class TestTimes:
    def test_ttl_counts_from_first_sight(self, stage):
        stage.add(reservation(ttlSeconds=60))
        stage.pass_time(59)
        assert stage.status(NAME) == "Reserved"
        stage.pass_time(2)
        assert stage.status(NAME) == "Refused TTLExpired"
        assert stage.core.metrics().slots == 0

    def test_a_renewal_restarts_the_ttl(self, stage):
        stage.add(reservation(ttlSeconds=60))
        stage.pass_time(50)
        stage.change_reservation(NAME, renewals=1)
        stage.pass_time(50)
        assert stage.status(NAME) == "Reserved"
        stage.pass_time(15)
        assert stage.status(NAME) == "Refused TTLExpired"

    def test_a_ttl_refusal_loses_against_dispatched(self, stage):
        # Rule 13: the hub's write came first, the extender had not seen it.
        stage.add(reservation(ttlSeconds=60))
        stage.auto_status = False
        stage.pass_time(61)
        refusal = stage.of(SetReservationStatus)[-1]
        assert refusal.status.state == "Refused"
        unseen = copy(stage.reservations[NAME])
        unseen.spec.state = "Dispatched"
        unseen.metadata.resource_version = "999"
        stage.reservations[NAME] = unseen
        assert not stage.put_status(refusal)
        stage.auto_status = True
        stage.add(unseen)
        assert stage.core.metrics().slots == 3
        for each in pods():
            stage.add(each)
            stage.schedule(each)
        assert len(stage.bound()) == 3

    def test_the_landing_deadline_ends_it_together(self, stage):
        stage.add(reservation(landingDeadlineSeconds=600))
        dispatch(stage)
        all_pods = pods()
        stage.add(*all_pods[:2])
        stage.pass_time(560)
        calls = [stage.schedule(each) for each in all_pods[:2]]
        stage.pass_time(41)
        assert stage.status(NAME) == "Refused LandingDeadlineExceeded"
        assert all(stage.answers[call] for call in calls)
        assert stage.core.metrics().slots == 0
        assert not stage.bound()

    def test_a_status_write_that_was_lost_is_asked_for_again(self, stage):
        stage.auto_status = False
        stage.add(reservation())
        assert len(stage.of(SetReservationStatus)) == 1
        stage.pass_time(6)
        assert len(stage.of(SetReservationStatus)) == 2

    def test_a_deleted_reservation_frees_its_room(self, stage):
        stage.add(reservation())
        stage.perform(stage.core.reservation_deleted("muster-system", NAME, stage.now))
        assert stage.core.metrics().slots == 0
        assert stage.states() == {}


class TestAdmission:
    def test_dispatched_pods_land_on_their_slots(self, stage):
        stage.add(reservation())
        dispatch(stage)
        for each in pods():
            stage.add(each)
            assert isinstance(stage.schedule(each), int)
        assert len(stage.bound()) == 3
        assert stage.status(NAME) == "Landed"

    @pytest.mark.parametrize("state", ["Pending", "none"])
    def test_pods_without_a_dispatched_reservation_are_refused(self, stage, state):
        if state == "Pending":
            stage.add(reservation())
        (master, *_) = pods()
        stage.add(master)
        expected = admission.NOT_DISPATCHED if state == "Pending" else admission.NO_RESERVATION
        assert stage.schedule(master) == expected
        assert stage.answers[stage.bind(master, "a")] == expected

    def test_refused_pods_are_woken_by_the_dispatch(self, stage):
        stage.add(reservation(), pods()[0])
        stage.schedule(pods()[0])
        dispatch(stage)
        stage.pass_time(1)
        assert stage.woken == ["job-master-0"]

    def test_a_dead_epoch_is_never_admitted(self, stage):
        # Rule 11: a late second POST of the old leader.
        stage.add(reservation(epoch=1, state="Dispatched"), reservation(epoch=2))
        (master, *_) = pods(epoch=1)
        stage.add(master)
        assert stage.schedule(master) == admission.SUPERSEDED
        assert stage.core.metrics().slots == 3, "room for epoch 2 alone"

    def test_another_hub_is_another_hub(self, stage):
        stage.add(reservation(state="Dispatched", hubID="hub-2"), pods()[0])
        assert stage.schedule(pods()[0]) == admission.OTHER_HUB

    def test_pods_of_the_hub_that_lost_their_annotations_are_not_a_users_gang(self, stage):
        stage.add(pod_group("job", 1, annotations={"muster.dev/hub-id": HUB}))
        bare = member("job-master-0", "job")
        stage.add(bare)
        assert stage.schedule(bare) == admission.NO_RESERVATION

    def test_an_unknown_role_is_refused(self, stage):
        stage.add(reservation(state="Dispatched"))
        evaluator = hub_pod("job", "evaluator")
        stage.add(evaluator)
        assert stage.schedule(evaluator) == admission.UNKNOWN_ROLE

    def test_a_reservation_deleted_while_calls_are_held(self, stage):
        stage.add(reservation(state="Dispatched"))
        (master, *_) = pods()
        stage.add(master)
        call = stage.schedule(master)
        stage.perform(stage.core.reservation_deleted("muster-system", NAME, stage.now))
        assert stage.answers[call]
        assert stage.schedule(master) == admission.NO_RESERVATION

    def test_the_reservation_is_checked_again_before_the_commit(self, stage):
        stage.auto_recheck = False
        stage.add(reservation(state="Dispatched"), *pods())
        for each in pods():
            stage.schedule(each)
        recheck = stage.effects[-1]
        assert recheck.reservation == ("muster-system", NAME)
        stage.perform(stage.core.reservation_deleted("muster-system", NAME, stage.now))
        stage.perform(stage.core.recheck_done(recheck.gang, recheck.token, "", stage.now))
        assert not stage.posts

    def test_after_a_start_the_hubs_lease_must_be_renewed_first(self):
        # Rule 12: a fenced member comes back.
        stage = Stage().add(node("a", cpu=8), reservation(state="Dispatched"), *pods())
        stage.start(hub_alive=False)
        assert stage.schedule(pods()[0]) == admission.HUB_SILENT
        stage.perform(stage.core.hub_lease_seen(stage.now))
        stage.pass_time(1)
        assert stage.woken == ["job-master-0"]
        for each in pods():
            stage.schedule(each)
        assert len(stage.bound()) == 3

    def test_after_a_long_silence_too(self, stage):
        stage.pass_time(901)
        stage.add(reservation(state="Dispatched"), *pods())
        assert stage.schedule(pods()[0]) == admission.HUB_SILENT


class TestRealPods:
    def test_default_tolerations_do_not_disturb_the_plan(self, stage):
        # DefaultTolerationSeconds adds them to every pod but to no template.
        tolerations = [
            {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            for key in ("not-ready", "unreachable")
        ]
        stage.add(reservation(state="Dispatched"))
        before = {(p.node, p.role): p.count for p in stage.reservations[NAME].status.placements}
        real = pods(spec={"tolerations": tolerations})
        for each in real:
            stage.add(each)
            stage.schedule(each)
        where = stage.bound()
        after: dict[tuple[str, str], int] = {}
        for name, n in where.items():
            role = name.split("-")[1]
            after[n, role] = after.get((n, role), 0) + 1
        assert after == before

    def test_a_sidecar_that_a_webhook_added_is_planned_anew(self, stage):
        # Workers ask for 3 cpu instead of 2: they no longer share a node.
        stage.add(reservation(state="Dispatched"))
        real = [pods()[0], *(hub_pod("job", "worker", i, cpu="3") for i in range(2))]
        for each in real:
            stage.add(each)
            assert isinstance(stage.schedule(each), int)
        bound = stage.bound()
        assert bound["job-worker-0"] != bound["job-worker-1"]

    def test_real_pods_that_fit_nowhere_break_the_promise(self, stage):
        stage.add(reservation(state="Dispatched"))
        big = hub_pod("job", "worker", 0, cpu="8")
        stage.add(big)
        assert stage.schedule(big) in (life.NO_ROOM, admission.REFUSED)
        assert stage.status(NAME) == "Refused PromiseBroken"

    def test_runtime_class_overhead_counts_in_the_template(self, stage):
        overhead = msgspec.convert({"metadata": {"name": "kata"}, "overhead": {"podFixed": {"cpu": "2"}}}, RuntimeClass)
        stage.perform(stage.core.runtime_class_changed(overhead, stage.now))
        roles = [{"name": "worker", "count": 3, "minCount": 3, "template": template(cpu="1", runtimeClassName="kata")}]
        stage.add(reservation(roles=roles))
        assert stage.status(NAME) == "Refused InsufficientResources", "3 cpu each, one per node"

    def test_priority_classes_are_resolved_in_the_member(self, stage):
        default = msgspec.convert({"metadata": {"name": "d"}, "value": 7, "globalDefault": True}, PriorityClass)
        stage.perform(stage.core.priority_class_changed(default, stage.now))
        stage.add(reservation())
        assert stage.core._world.gangs["hub:" + NAME].priority == 7


ELASTIC = [
    {"name": "master", "count": 1, "minCount": 1, "template": template(cpu="1")},
    {"name": "worker", "count": 4, "minCount": 2, "template": template(cpu="2")},
]


class TestElastic:
    def test_it_lands_with_its_minimum_and_grows_when_there_is_room(self):
        stage = Stage().add(node("a", cpu=5)).start()
        stage.add(reservation(roles=ELASTIC, state="Dispatched"))
        assert stage.status(NAME) == "Reserved"
        assert stage.core.metrics().slots == 3
        workers = [hub_pod("job", "worker", i) for i in range(4)]
        master = hub_pod("job", "master")
        stage.add(master, *workers)
        results = [stage.schedule(each) for each in [*workers, master]]
        assert results[2:4] == [life.NO_ROOM] * 2
        assert stage.status(NAME) == "Landed"
        assert len(stage.bound()) == 3
        stage.add(node("b", cpu=4))
        stage.pass_time(1)
        assert sorted(stage.woken) == ["job-worker-2", "job-worker-3"]
        for each in workers[2:]:
            stage.schedule(each)
        assert len(stage.bound()) == 5

    def test_below_the_minimum_it_is_refused(self):
        stage = Stage().add(node("a", cpu=4)).start()
        stage.add(reservation(roles=ELASTIC))
        assert stage.status(NAME) == "Refused InsufficientResources"
        assert stage.reservations[NAME].status.message == "largest fit 2 of 5 pods: 3 short of cpu"


class TestBrokenPromises:
    def test_a_lost_node_is_planned_around(self, stage):
        stage.add(node("c", cpu=4), reservation())
        placed = {place.node for place in stage.reservations[NAME].status.placements}
        stage.lose_node(min(placed))
        assert stage.status(NAME) == "Reserved"
        assert stage.core.metrics().slots == 3

    def test_no_plan_any_more_is_refused(self, stage):
        stage.add(reservation())
        stage.lose_node("a")
        assert stage.status(NAME) == "Refused PromiseBroken"

    def test_pods_bound_past_the_extender_break_promises(self, stage):
        stage.add(reservation())
        stage.add(pod("thief", cpu="4", node="a"))
        assert stage.status(NAME) == "Refused PromiseBroken"
        assert stage.core.metrics().slots == 0


class TestEnds:
    def land(self, stage):
        stage.add(reservation(state="Dispatched"), *pods())
        for each in pods():
            stage.schedule(each)
        assert stage.status(NAME) == "Landed"
        return pods()

    def test_the_masters_success_and_nobody_running_is_the_end(self, stage):
        # Rule 9.
        master, *workers = self.land(stage)
        stage.finish(master)
        assert not stage.reservations[NAME].status.pods_ended
        for each in workers:
            stage.delete(each)
        assert stage.reservations[NAME].status.pods_ended
        assert not stage.evicted

    def test_pods_that_only_vanished_prove_nothing(self, stage):
        for each in self.land(stage):
            stage.delete(each)
        assert not stage.reservations[NAME].status.pods_ended

    def test_failed_members_all_seen_to_their_end(self, stage):
        for each in self.land(stage):
            stage.finish(each, "Failed")
        assert stage.reservations[NAME].status.pods_ended

    def test_eviction_refuses_the_reservation(self, stage):
        all_pods = pods()
        stage.refuse_posts[all_pods[2].metadata.uid] = [Outcome.REJECTED] * 1000
        stage.add(reservation(state="Dispatched"), *all_pods)
        for each in all_pods:
            stage.schedule(each)
        stage.pass_time(130)
        assert stage.status(NAME) == "Refused Evicted"
        assert set(stage.evicted) == {"job-master-0", "job-worker-0"}


class TestTakeOver:
    def test_reserved_places_are_taken_again_as_recorded(self):
        status = {
            "state": "Reserved",
            "placements": [
                {"node": "b", "role": "master", "count": 1},
                {"node": "a", "role": "worker", "count": 2},
            ],
        }
        stage = Stage().add(node("a", cpu=4), node("b", cpu=4), reservation(status=status)).start()
        slots = stage.core._world.ledger.slots.values()
        assert sorted((slot.node, slot.role) for slot in slots) == [("a", "worker"), ("a", "worker"), ("b", "master")]
        assert not stage.of(SetReservationStatus)

    def test_order_half_bound_then_dispatched_then_reserved(self):
        # Room for one more gang of three beside the half-bound one: the dispatched one gets it, not the older Reserved.
        status = {"state": "Reserved"}
        half = [copy(each) for each in pods("half")]
        half[0].spec.node_name = "a"
        stage = Stage().add(
            node("a", cpu=5),
            node("b", cpu=5),
            reservation("old", status=status),
            reservation("disp", state="Dispatched", status=status),
            reservation("half", state="Dispatched", status=status),
            *half,
        )
        stage.start()
        assert stage.core.metrics().gangs["healing"] == 1
        assert stage.status("id-disp-1") == "Reserved"
        assert stage.status("id-old-1") == "Refused PromiseBroken"
        for each in half[1:]:
            stage.schedule(each)
        assert stage.status("id-half-1") == "Landed"

    def test_standing_down_fails_every_call_and_a_successor_lands_the_gang(self, stage):
        stage.add(reservation(state="Dispatched"), *pods())
        call = stage.schedule(pods()[0])
        stage.perform(stage.core.stood_down(stage.now))
        assert stage.answers[call]
        assert stage.filter(pods()[0]).error
        assert stage.core.metrics().slots == 0
        stage.start()
        for each in pods():
            stage.schedule(each)
        assert len(stage.bound()) == 3

    def test_a_binding_in_flight_while_standing_down_keeps_its_charge(self, stage):
        stage.auto_post = False
        plain = pod("plain", cpu="3")
        stage.add(plain)
        stage.bind(plain, "a")
        stage.perform(stage.core.stood_down(stage.now))
        assert stage.core.metrics().charges == 1
        stage.start()
        rival = pod("rival", cpu="3")
        stage.add(rival)
        call = stage.bind(rival, "a")
        stage.pass_time(2)
        assert stage.answers[call]
        stage.post(plain.metadata.uid, "a")
        assert stage.bound() == {"plain": "a"}

    def test_a_dispatched_gang_is_not_refused_before_a_predecessors_bindings_have_shown(self):
        # Rule 14: the list was taken while the last of three Bindings was on its way to node b.
        all_pods = [copy(each) for each in pods()]
        stage = Stage(CoreConfig(takeover_grace=1.0))
        stage.add(node("a", cpu=3), reservation(state="Dispatched", status={"state": "Reserved"}), *all_pods).start()
        assert stage.status(NAME) == "Reserved"
        for each, where in zip(all_pods, "aab", strict=True):
            bound = copy(each)
            bound.spec.node_name = where
            stage.add(bound)
        stage.pass_time(2)
        assert stage.status(NAME) == "Landed"

    def test_and_is_refused_if_none_have(self):
        stage = Stage(CoreConfig(takeover_grace=1.0))
        stage.add(node("a", cpu=3), reservation(state="Dispatched", status={"state": "Reserved"})).start()
        stage.pass_time(1.1)
        assert stage.status(NAME) == "Refused PromiseBroken"

    def test_the_first_posts_wait_for_a_predecessors(self):
        stage = Stage(CoreConfig(takeover_grace=1.0)).add(node("a")).start()
        plain = pod("plain")
        stage.add(plain)
        stage.bind(plain, "a")
        assert not stage.posts
        stage.pass_time(1.1)
        assert stage.bound() == {"plain": "a"}


def test_placements_are_of_bound_pods_once_landed(stage):
    stage.add(reservation(state="Dispatched"), *pods())
    for each in pods():
        stage.schedule(each)
    bound = stage.bound()
    expected: dict[tuple[str, str], int] = {}
    for name, where in bound.items():
        role = name.split("-")[1]
        expected[where, role] = expected.get((where, role), 0) + 1
    assert stage.reservations[NAME].status.placements == [
        Placement(where, role, count) for (where, role), count in sorted(expected.items())
    ]
