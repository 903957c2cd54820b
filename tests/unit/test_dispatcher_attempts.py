"""The crash table up to the point of no return, rule by rule: what is recorded, what is seen, what follows.

Rule numbers are the protocol's. `test_dispatcher_attempts_placed` has the rest.
"""

from datetime import timedelta

import pytest

from dispatcher import attempts
from dispatcher.observations import Intent, ReservationView, Stray
from dispatcher.steps import (
    AwaitAdmission,
    CreateBinding,
    DeleteCopy,
    DeleteReservation,
    PostReservation,
    ReadBinding,
    RemoveFinalizer,
    RenewReservation,
    StampJob,
    Wait,
)
from kube.objects.binding import Attempt, Component
from tests.unit.dispatcher_attempt_views import (
    CHARGE,
    COMPONENTS,
    NOW,
    copy,
    job,
    member,
    recorded,
    reservation,
    spec,
    step,
)


class TestBeforeThereIsABinding:
    def test_a_job_without_a_policy_is_left_alone(self):
        assert step(None, job=job(policy="")) == Wait(reason="NoPolicy")

    def test_a_job_that_a_policy_selects_gets_a_binding(self):
        assert step(None) == CreateBinding()

    def test_a_binding_is_stamped_on_its_job_before_anything_else(self):
        assert step(spec(), job=job(job_id="")) == StampJob()
        assert step(spec(), job=job(finalizer=False)) == StampJob()

    def test_the_finalizer_goes_only_after_a_live_read_showed_no_binding(self):
        """Rule 6, and "Words": the binding is removed before the job's finalizer."""
        assert step(None, job=job(deleting=True)) == ReadBinding()
        assert step(None, job=job(deleting=True), binding_live=True) == RemoveFinalizer()

    def test_a_job_that_is_going_and_was_never_ours_is_left_alone(self):
        assert step(None, job=job(deleting=True, finalizer=False)) == Wait(reason="Nothing")


class TestWaiting:
    def test_nothing_stands_in_the_way_of_admission(self):
        assert step(spec()) == AwaitAdmission()

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"problem": "Worker.replicas must not be negative"}, "Invalid"),
            ({"suspended": True}, "Suspended"),
            ({"policy": ""}, "NoPolicy"),
            ({"hold": "namespace x has no quota"}, "Held"),
        ],
    )
    def test_what_holds_a_job_is_named(self, fields, reason):
        found = step(spec(), job=job(**fields))
        assert isinstance(found, Wait)
        assert found.reason == reason

    def test_an_edit_of_a_waiting_job_is_followed(self):
        """Rule 1: by a record."""
        wanted = Intent(policy="p", queued=True, quota="root/a", components=COMPONENTS, min_member=2, priority=5)
        found = recorded(step(spec(), intent=wanted), "Refreshed")
        assert (found.priority, found.quota, found.queued) == (5, "root/a", True)
        assert step(found, intent=wanted) == AwaitAdmission()

    def test_rule_8_no_attempt_while_a_reachable_member_shows_another(self):
        """What an earlier attempt left is removed first, then admission goes on."""
        old = Stray(cluster="c2", reservations=(reservation("Reserved", dispatched=False),))
        queued = spec(last_epoch=1)
        assert step(queued, strays=(old,)) == DeleteReservation("c2", 1, "r1", "7")
        assert step(queued, strays=(Stray(cluster="c2", copy=copy()),)) == DeleteCopy("c2", "copy1", "9")
        waiting = step(queued, strays=(Stray(cluster="c2", pods=1),))
        assert isinstance(waiting, Wait)
        assert waiting.reason == "StrayPods"

    def test_rule_18_a_copy_that_the_hub_forgot_is_adopted(self):
        found = recorded(step(spec(last_epoch=2), strays=(Stray(cluster="c2", copy=copy(epoch=4)),)), "Adopted")
        assert found.attempt is not None
        assert (found.attempt.cluster, found.attempt.epoch, found.attempt.state) == ("c2", 4, "Landed")
        assert found.last_epoch == 4

    def test_rule_18_new_epochs_start_above_any_seen(self):
        late = ReservationView(uid="r9", resource_version="1", epoch=6)
        found = recorded(step(spec(last_epoch=2), strays=(Stray(cluster="c2", reservations=(late,)),)), "EpochRaised")
        assert found.last_epoch == 6
        assert attempts.reserving(found, "c1", "k1", None, NOW, excluded=[]).spec.last_epoch == 7

    def test_something_newer_than_a_placed_attempt_is_not_touched(self):
        """Our copy of the binding may be an old one: only what is older than its attempt is surely dead."""
        newer = Stray(cluster="c2", copy=copy(epoch=2), reservations=(ReservationView(resource_version="1", epoch=2),))
        seen = member(reservation=reservation(), copy=copy())
        assert step(spec("Landed"), seen=seen, strays=(newer,)) == Wait(reason="Running")

    def test_an_attempt_starts_one_epoch_higher_and_is_charged(self):
        found = recorded(
            attempts.reserving(spec(last_epoch=3, excluded=["c2"]), "c1", "k1", CHARGE, NOW, excluded=["c3"]),
            "Reserving",
        )
        assert found.attempt == Attempt(
            cluster="c1", cluster_uid="k1", epoch=4, state="Reserving", started_at="2026-08-01T12:00:00.000000Z"
        )
        assert (found.charge, found.last_epoch, found.excluded) == (CHARGE, 4, ["c3"])

    def test_nothing_is_admitted_twice(self):
        with pytest.raises(ValueError, match="not waiting"):
            attempts.reserving(spec("Landed"), "c1", "k1", None, NOW, excluded=[])


class TestReserving:
    def test_rule_2_the_reservation_is_posted_after_the_record(self):
        assert step(spec("Reserving"), seen=member()) == PostReservation("c1", 1)

    def test_rule_2_scheduled_is_recorded_once_the_member_says_reserved(self):
        seen = member(reservation=reservation("Reserved", dispatched=False))
        found = recorded(step(spec("Reserving"), seen=seen), "Scheduled")
        assert found.attempt is not None
        assert found.attempt.state == "Scheduled"
        assert found.charge == CHARGE

    def test_refused_asks_the_next_member_with_a_higher_epoch(self):
        seen = member(reservation=reservation("Refused", dispatched=False, message="largest fit 1 of 2 pods"))
        found = recorded(step(spec("Reserving", queued_at="T"), seen=seen), "Requeued")
        assert (found.attempt, found.charge, found.last_epoch) == (None, None, 1)
        assert found.excluded == ["c1"]
        assert found.queued_at == "T", "age is kept"

    def test_it_waits_for_the_extender_but_not_for_ever(self):
        seen = member(reservation=reservation("", dispatched=False))
        assert step(spec("Reserving"), seen=seen, waited=10.0) == Wait(
            reason="AwaitingAnswer", message="waiting for c1 to reserve", wake_after=20.0
        )
        found = recorded(step(spec("Reserving"), seen=seen, waited=30.0), "Requeued")
        assert found.excluded == ["c1"]

    def test_it_may_be_dropped_without_reaching_its_member(self):
        """A member that dies now must not hold the job for ever."""
        gone = member(connection="Unreachable", why="silent")
        assert step(spec("Reserving"), seen=gone, waited=5.0) == Wait(
            reason="Unreachable", message="silent", wake_after=10.0
        )
        assert recorded(step(spec("Reserving"), seen=gone, waited=15.0), "Requeued").attempt is None

    def test_deletion_drops_it_unseen(self):
        gone = member(connection="Unreachable", why="silent")
        found = recorded(step(spec("Reserving"), seen=gone, job=job(deleting=True)), "Deleting")
        assert (found.attempt, found.charge, found.deleting) == (None, None, True)

    @pytest.mark.parametrize("fields", [{"suspended": True}, {"problem": "bad"}, {"policy": ""}])
    def test_a_hold_or_an_edit_takes_it_back(self, fields):
        assert recorded(step(spec("Reserving"), seen=member(), job=job(**fields)), "Requeued").excluded == []

    def test_another_gang_than_room_was_asked_for_is_asked_for_again(self):
        grown = [Component(name="worker", replicas=4, min_replicas=4)]
        wanted = Intent(policy="p", queued=False, quota="", components=grown, min_member=4, priority=0)
        seen = member(reservation=reservation("Reserved", dispatched=False))
        recorded(step(spec("Reserving"), seen=seen, intent=wanted), "Requeued")

    def test_the_ttl_of_a_claim_is_renewed(self):
        claim = reservation("", dispatched=False, claim=True, renewals=1)
        assert step(spec("Reserving"), seen=member(reservation=claim), waited=41.0) == RenewReservation("c1", 1, "7", 2)
        assert isinstance(step(spec("Reserving"), seen=member(reservation=claim), waited=39.0), Wait)

    def test_admission_checks_of_others_come_before_scheduled_with_the_room_kept(self):
        room = member(reservation=reservation("Reserved", dispatched=False, renewals=1))
        waiting = step(spec("Reserving"), seen=room, waited=39.0, checks_pending="budget")
        assert isinstance(waiting, Wait)
        assert waiting.message == "room is reserved; waiting for admission check budget"
        assert step(spec("Reserving"), seen=room, waited=41.0, checks_pending="budget") == RenewReservation(
            "c1", 1, "7", 2
        )
        late = step(spec("Reserving"), seen=room, waited=3600.0, checks_pending="budget")
        assert recorded(late, "Requeued").charge is None
        failed = recorded(step(spec("Reserving"), seen=room, checks_failed="budget: Rejected"), "Requeued")
        assert (failed.charge, failed.excluded) == (None, ["c1"])

    def test_rule_18_a_copy_of_the_same_epoch_before_scheduled_is_adopted(self):
        found = recorded(step(spec("Reserving"), seen=member(copy=copy())), "Adopted")
        assert found.attempt is not None
        assert found.attempt.state == "Landed"

    def test_a_member_that_was_replaced_is_given_up(self):
        """Rule 17."""
        recorded(step(spec("Reserving"), seen=member(cluster_uid="k2")), "Requeued")

    def test_what_the_member_rejects_for_good_goes_back_to_the_queue(self):
        found = recorded(attempts.rejected(spec("Reserving"), "denied by webhook"), "Requeued")
        assert found.excluded == ["c1"]


def test_eviction_from_outside_keeps_the_age_and_charges_until_all_is_gone():
    found = attempts.evict(spec("Landed", queued_at="T"), "Preempted", "team-b needs its guaranteed share")
    assert found is not None
    assert (found.spec.queued_at, found.spec.charge) == ("T", CHARGE)
    assert attempts.evict(spec(), "Preempted", "") is None
    assert attempts.evict(spec("Evicting", then="Queue"), "Preempted", "") is None


def test_times_are_rfc_3339_with_microseconds():
    later = NOW + timedelta(microseconds=5)
    found = attempts.reserving(spec(), "c1", "k1", None, later, excluded=[]).spec
    assert found.attempt is not None
    assert found.attempt.started_at == "2026-08-01T12:00:00.000005Z"
