"""The crash table after the point of no return: running, evicting, finished, deleted and made again."""

import msgspec
import pytest

from dispatcher import attempts
from dispatcher.observations import Intent, PodGroupView
from dispatcher.steps import (
    AwaitAdmission,
    DeleteCopy,
    DeletePodGroup,
    DeleteReservation,
    Dispatch,
    ExpireJob,
    PostReservation,
    ReadHubJob,
    ReadLive,
    Record,
    RemoveBinding,
    SetDispatched,
    Wait,
)
from kube.objects.binding import Component, Result
from tests.unit.dispatcher_attempt_views import CHARGE, ENDED, NOW, copy, job, member, recorded, reservation, spec, step


class TestScheduledAndLanded:
    def test_rule_2_dispatched_before_the_job_is_posted(self):
        seen = member(reservation=reservation("Reserved", dispatched=False))
        assert step(spec("Scheduled"), seen=seen) == SetDispatched("c1", 1, "7")

    def test_rule_2_then_the_job(self):
        assert step(spec("Scheduled"), seen=member(reservation=reservation("Reserved"))) == Dispatch("c1", 1)

    def test_a_copy_that_was_seen_is_recorded_and_never_posted_again(self):
        """Rule 5: Landed with the copy missing means Evicting."""
        seen = member(reservation=reservation(), copy=copy())
        landed = recorded(step(spec("Scheduled"), seen=seen), "Landed")
        gone = member(reservation=reservation())
        assert step(landed, seen=gone) == ReadLive("c1"), "absence is decided by a live read (rule 6)"
        found = recorded(step(landed, seen=msgspec.structs.replace(gone, live=True)), "Evicting")
        assert found.attempt is not None
        assert (found.attempt.reason, found.attempt.then) == ("CopyMissing", "Queue")
        assert found.charge == CHARGE, "rule 7: charged until nothing is left"

    def test_running_is_left_alone(self):
        assert step(spec("Landed"), seen=member(reservation=reservation(), copy=copy())) == Wait(reason="Running")

    @pytest.mark.parametrize("state", ["Scheduled", "Landed"])
    def test_rule_5_refused_after_scheduled_means_evicting_never_the_next(self, state):
        seen = member(reservation=reservation("Refused", message="not landed in 600s"), copy=copy())
        found = recorded(step(spec(state), seen=seen), "Evicting")
        assert found.attempt is not None
        assert (found.attempt.epoch, found.attempt.message) == (1, "not landed in 600s")
        assert found.charge == CHARGE

    @pytest.mark.parametrize("state", ["Scheduled", "Landed"])
    def test_rule_5_missing_after_scheduled_means_evicting(self, state):
        assert step(spec(state), seen=member(copy=copy())) == ReadLive("c1")
        recorded(step(spec(state), seen=member(copy=copy(), live=True)), "Evicting")

    @pytest.mark.parametrize("state", ["Scheduled", "Landed", "Evicting", "Finished"])
    def test_rule_15_an_unreachable_member_proves_nothing(self, state):
        result = Result(state="Succeeded", cluster="c1", epoch=1) if state == "Finished" else None
        silent = member(connection="Unreachable", why="silent")
        found = step(spec(state, result=result), seen=silent, waited=1e9)
        assert found == Wait(reason="Unreachable", message="c1: silent")

    @pytest.mark.parametrize("state", ["Scheduled", "Landed", "Evicting"])
    def test_rule_17_a_replaced_member_proves_nothing(self, state):
        found = step(spec(state), seen=member(cluster_uid="another", live=True))
        assert isinstance(found, Wait)
        assert found.reason == "Unreachable"

    def test_rule_15_a_fence_ends_it(self):
        fenced = member(connection="Fenced", why="by an admin")
        evicting = recorded(step(spec("Landed"), seen=fenced), "Evicting")
        released = recorded(step(evicting, seen=fenced), "Released")
        assert (released.attempt, released.charge, released.excluded) == (None, None, ["c1"])

    def test_an_end_is_recorded_before_anything_else(self):
        found = recorded(step(spec("Landed"), seen=member(reservation=reservation("Refused"), copy=ENDED)), "Finished")
        assert found.result == Result(
            state="Succeeded", cluster="c1", epoch=1, message="done", completion_time="2026-08-01T11:00:00Z"
        )
        assert found.attempt is not None
        assert found.attempt.state == "Finished"
        assert found.charge == CHARGE, "rule 7: its workers may still run"

    def test_rule_9_an_end_that_nobody_saw_is_not_run_again(self):
        """Its pods have ended, then the copy was deleted by hand before the hub saw how."""
        seen = member(reservation=reservation(pods_ended=True))
        for state in ("Scheduled", "Landed"):
            assert step(spec(state), seen=seen) == ReadLive("c1")
            found = recorded(step(spec(state), seen=msgspec.structs.replace(seen, live=True)), "Finished")
            assert found.result is not None
            assert found.result.state == "Failed"

    def test_somebody_elses_job_of_that_name_is_not_touched(self):
        seen = member(reservation=reservation("Reserved"), copy=copy(job_id="", uid="theirs"), live=True)
        found = recorded(step(spec("Scheduled"), seen=seen), "Evicting")
        assert found.attempt is not None
        assert found.attempt.reason == "NameTaken"

    def test_an_older_copy_of_ours_is_removed_first(self):
        seen = member(reservation=reservation("Reserved"), copy=copy(epoch=0))
        assert step(spec("Scheduled"), seen=seen) == DeleteCopy("c1", "copy1", "9")

    def test_suspending_takes_it_back_and_holds_it(self):
        seen = member(reservation=reservation(), copy=copy())
        found = recorded(step(spec("Landed"), seen=seen, job=job(suspended=True)), "Evicting")
        assert found.attempt is not None
        assert found.attempt.then == "Hold"

    def test_deletion_evicts(self):
        seen = member(reservation=reservation(), copy=copy())
        found = recorded(step(spec("Landed"), seen=seen, job=job(deleting=True)), "Evicting")
        assert found.attempt is not None
        assert (found.attempt.then, found.deleting) == ("Delete", True)

    def test_what_the_member_rejects_for_good_is_evicted(self):
        found = recorded(attempts.rejected(spec("Scheduled"), "denied"), "Evicting")
        assert found.attempt is not None
        assert found.attempt.reason == "Rejected"

    def test_an_edit_before_the_job_is_posted_asks_for_room_anew(self):
        grown = [Component(name="worker", replicas=4, min_replicas=4)]
        wanted = Intent(policy="p", queued=False, quota="", components=grown, min_member=4, priority=0)
        seen = member(reservation=reservation("Reserved"))
        recorded(step(spec("Scheduled"), seen=seen, intent=wanted), "Evicting")

    def test_an_edit_afterwards_changes_nothing(self):
        grown = [Component(name="worker", replicas=4, min_replicas=4)]
        wanted = Intent(policy="p", queued=False, quota="", components=grown, min_member=4, priority=0)
        seen = member(reservation=reservation(), copy=copy())
        assert step(spec("Landed"), seen=seen, intent=wanted) == Wait(reason="Running")


class TestEvicting:
    """Rule 3: delete the reservation, then the copy, list pods until none is left, only then release."""

    def test_one_order_for_every_ending(self):
        evicting = spec("Evicting", then="Queue")
        seen = member(reservation=reservation(), copy=copy(), pods=2, pods_running=2)
        assert step(evicting, seen=seen) == DeleteReservation("c1", 1, "r1", "7")
        seen = msgspec.structs.replace(seen, reservation=None)
        assert step(evicting, seen=seen) == DeleteCopy("c1", "copy1", "9"), "rule 4: uid and resourceVersion"
        seen = msgspec.structs.replace(seen, copy=None)
        assert step(evicting, seen=seen) == ReadLive("c1"), "rule 6"
        group = PodGroupView(uid="g1", resource_version="3")
        seen = msgspec.structs.replace(seen, live=True, pod_group=group)
        assert step(evicting, seen=seen) == DeletePodGroup("c1", "g1", "3")
        seen = msgspec.structs.replace(seen, pod_group=None)
        waiting = step(evicting, seen=seen)
        assert isinstance(waiting, Wait)
        assert waiting.reason == "PodsEnding"
        seen = msgspec.structs.replace(seen, pods=0, pods_running=0)
        found = recorded(step(evicting, seen=seen), "Released")
        assert (found.attempt, found.charge, found.last_epoch) == (None, None, 1)

    def test_rule_6_empty_caches_release_nothing(self):
        assert step(spec("Evicting", then="Queue"), seen=member()) == ReadLive("c1")

    def test_rule_4_a_copy_that_has_finished_is_recorded_instead(self):
        found = recorded(step(spec("Evicting", then="Queue"), seen=member(copy=ENDED)), "Finished")
        assert found.result is not None

    def test_rule_9_pods_that_ended_without_a_copy_are_an_end(self):
        seen = member(reservation=reservation(pods_ended=True))
        assert step(spec("Evicting", then="Queue"), seen=seen) == ReadLive("c1")
        recorded(step(spec("Evicting", then="Queue"), seen=msgspec.structs.replace(seen, live=True)), "Finished")

    def test_somebody_elses_job_is_not_deleted(self):
        seen = member(copy=copy(job_id="", uid="theirs"), live=True)
        recorded(step(spec("Evicting", then="Queue"), seen=seen), "Released")

    def test_a_member_that_failed_it_is_excluded_for_a_while(self):
        refused = spec("Evicting", then="Queue")
        assert refused.attempt is not None
        refused.attempt.reason = "Refused"
        assert recorded(step(refused, seen=member(live=True)), "Released").excluded == ["c1"]

    def test_deletion_meanwhile_changes_what_follows(self):
        found = recorded(step(spec("Evicting", then="Queue"), job=job(deleting=True), seen=member()), "Evicting")
        assert found.attempt is not None
        assert found.attempt.then == "Delete"

    def test_with_everything_gone_the_record_of_a_deleted_job_goes(self):
        deleting = spec("Evicting", then="Delete", deleting=True)
        assert step(deleting, seen=member(live=True), job=job(deleting=True)) == RemoveBinding()


class TestFinished:
    DONE = Result(state="Succeeded", cluster="c1", epoch=1, completion_time="2026-08-01T11:00:00Z")

    def test_rules_3_and_9_the_copy_stays_and_workers_are_charged_until_they_end(self):
        finished = spec("Finished", result=self.DONE)
        seen = member(reservation=reservation(), copy=ENDED, pods=2, pods_running=1)
        assert step(finished, seen=seen) == DeleteReservation("c1", 1, "r1", "7")
        seen = msgspec.structs.replace(seen, reservation=None)
        waiting = step(finished, seen=seen)
        assert isinstance(waiting, Wait)
        assert waiting.reason == "WorkersRunning"
        seen = msgspec.structs.replace(seen, pods_running=0)
        assert step(finished, seen=seen) == ReadLive("c1"), "rule 6"
        found = recorded(step(finished, seen=msgspec.structs.replace(seen, live=True)), "FinishReleased")
        assert found.charge is None
        assert found.result is not None
        assert found.result.released
        assert step(found, seen=seen) == Wait(reason="Finished")

    def test_a_late_reservation_of_a_finished_job_is_removed(self):
        done = spec("Finished", result=msgspec.structs.replace(self.DONE, released=True), charge=None)
        late = member(reservation=reservation("", dispatched=False), copy=ENDED)
        assert step(done, seen=late) == DeleteReservation("c1", 1, "r1", "7")

    def test_rule_9_the_hub_keeps_the_ttl(self):
        done = spec("Finished", result=msgspec.structs.replace(self.DONE, released=True), charge=None)
        seen = member(copy=ENDED)
        assert step(done, seen=seen, job=job(ttl_seconds=3600)) == ExpireJob("u1"), "it ended an hour ago"
        later = step(done, seen=seen, job=job(ttl_seconds=3610))
        assert later == Wait(reason="Finished", wake_after=10.0)
        assert step(done, seen=seen, job=job(ttl_seconds=0)) == ExpireJob("u1")

    def test_deletion_takes_the_copy_and_waits_for_every_pod(self):
        gone = spec("Finished", result=self.DONE, deleting=True)
        seen = member(copy=ENDED, pods=2)
        going = job(deleting=True)
        assert step(gone, seen=seen, job=going) == DeleteCopy("c1", "copy1", "9")
        seen = msgspec.structs.replace(seen, copy=None)
        assert step(gone, seen=seen, job=going) == ReadLive("c1")
        seen = msgspec.structs.replace(seen, live=True)
        assert isinstance(step(gone, seen=seen, job=going), Wait)
        assert step(gone, seen=msgspec.structs.replace(seen, pods=0), job=going) == RemoveBinding()

    def test_a_finished_job_never_runs_again(self):
        """F20: whatever is missing."""
        done = spec("Finished", result=self.DONE)
        for seen in (member(), member(live=True), member(reservation=reservation()), member(copy=copy(epoch=1))):
            assert not isinstance(step(done, seen=seen), Dispatch | PostReservation | AwaitAdmission)
        with pytest.raises(ValueError, match="not waiting"):
            attempts.reserving(msgspec.structs.replace(done, attempt=None), "c1", "k1", None, NOW, excluded=[])


class TestJobsThatGoAndComeBack:
    def test_rule_6_a_job_is_gone_only_if_a_live_read_says_so(self):
        assert step(spec(), job=None) == ReadHubJob()
        assert recorded(step(spec(), job=None, job_live=True), "Deleting").deleting

    def test_another_job_of_the_name_waits_until_the_first_is_gone(self):
        """Two generations at once would run twice."""
        new = job(uid="u2", job_id="")
        seen = member(reservation=reservation(), copy=copy())
        found = recorded(step(spec("Landed"), job=new, seen=seen), "Evicting")
        assert found.deleting
        assert step(spec(deleting=True), job=new) == RemoveBinding()

    def test_a_restored_job_continues_by_its_annotation(self):
        found = recorded(step(spec("Landed"), job=job(uid="u2"), seen=member()), "Rejoined")
        assert found.job.uid == "u2"
        assert found.attempt == spec("Landed").attempt

    def test_deleting_is_never_taken_back(self):
        """Not even by a job that carries the same id again."""
        assert step(spec(deleting=True), job=job()) == RemoveBinding()

    def test_the_whole_life_of_a_job_without_faults(self):
        """In the order of rules 2 and 3, ending with the result recorded and quota given back."""
        binding = recorded(attempts.reserving(spec(), "c1", "k1", CHARGE, NOW, excluded=[]), "Reserving")
        seen = member()
        order: list[str] = []
        for _ in range(20):
            found = step(binding, seen=seen)
            order.append(found.change if isinstance(found, Record) else type(found).__name__)
            match found:
                case Record():
                    binding = found.spec
                case PostReservation():
                    seen = msgspec.structs.replace(seen, reservation=reservation("Reserved", dispatched=False))
                case SetDispatched():
                    seen = msgspec.structs.replace(seen, reservation=reservation("Reserved"))
                case Dispatch():
                    seen = msgspec.structs.replace(seen, copy=copy(), pods=2, pods_running=2)
                case Wait(reason="Running"):
                    seen = msgspec.structs.replace(seen, copy=ENDED, pods_running=0)
                case DeleteReservation():
                    seen = msgspec.structs.replace(seen, reservation=None)
                case ReadLive():
                    seen = msgspec.structs.replace(seen, live=True)
                case _:
                    break
        assert order == [
            "PostReservation", "Scheduled", "SetDispatched", "Dispatch", "Landed", "Wait", "Finished",
            "DeleteReservation", "ReadLive", "FinishReleased", "Wait",
        ]  # fmt: skip
        assert binding.charge is None
