"""Random faults against the crash table: two dispatchers with old caches, lost and late requests, members that come and
go, refusals, users that delete and re-create. The world (`dispatcher_attempt_world`) asserts at every moment:

- a job never runs in two members or epochs at once, and a finished one never runs again (invariant 5);
- nothing is posted or dispatched before Scheduled is recorded (rule 2);
- quota is charged and released exactly once, and not released while pods run (rule 3, invariant 4);
- epochs, results and deletions never go back (rule 1); objects muster did not make are never deleted (invariant 9).

And from wherever it got to, without further faults: "finished and recorded, quota zero" or "all gone" (invariant 6).
"""

import contextlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.unit.dispatcher_attempt_candidate import Dispatcher, sweep_orphans
from tests.unit.dispatcher_attempt_world import Refused, World

CLUSTERS = st.sampled_from(["c1", "c2"])
MODES = st.sampled_from(["done", "done", "done", "answer lost", "lost", "late"])
WAITS = st.sampled_from([0.0, 0.0, 0.0, 100.0])


class Faults(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.world.create_job()
        self.dispatchers = [Dispatcher(self.world), Dispatcher(self.world)]

    @rule(who=st.integers(0, 1), mode=MODES, cluster=CLUSTERS, waited=WAITS)
    def act(self, who, mode, cluster, waited):
        self.dispatchers[who].step(mode, cluster, waited)

    @rule(who=st.integers(0, 1), cluster=CLUSTERS)
    def work_on(self, who, cluster):
        """An undisturbed stretch, so that deep states are reached."""
        dispatcher = self.dispatchers[who]
        dispatcher.see_hub()
        for name in self.world.members:
            dispatcher.see_member(name)
        for _ in range(6):
            dispatcher.step("done", cluster)
            self.world.judge(cluster, fits=True)

    @rule(who=st.integers(0, 1))
    def look_at_hub(self, who):
        self.dispatchers[who].see_hub()

    @rule(who=st.integers(0, 1), cluster=CLUSTERS)
    def look_at_member(self, who, cluster):
        self.dispatchers[who].see_member(cluster)

    @rule(who=st.integers(0, 1))
    def crash(self, who):
        self.dispatchers[who] = Dispatcher(self.world)

    @precondition(lambda self: self.world.late)
    @rule(data=st.data())
    def arrive_late(self, data):
        index = data.draw(st.integers(0, len(self.world.late) - 1))
        with contextlib.suppress(Refused):
            self.world.late.pop(index)()

    @rule(cluster=CLUSTERS, fits=st.booleans())
    def extender_judges(self, cluster, fits):
        self.world.judge(cluster, fits=fits)

    @rule(cluster=CLUSTERS)
    def extender_admits(self, cluster):
        self.world.admit(cluster)

    @rule(cluster=CLUSTERS)
    def reservation_expires(self, cluster):
        self.world.expire(cluster)

    @rule(cluster=CLUSTERS)
    def operator_works(self, cluster):
        self.world.operate(cluster)

    @rule(cluster=CLUSTERS)
    def operator_and_extender_work(self, cluster):
        self.world.operate(cluster)
        self.world.admit(cluster)

    @rule(cluster=CLUSTERS)
    def operator_works_with_old_cache(self, cluster):
        self.world.operate_with_old_cache(cluster)

    @rule(cluster=CLUSTERS)
    def garbage_is_collected(self, cluster):
        self.world.collect_garbage(cluster)

    @rule(cluster=CLUSTERS)
    def job_ends(self, cluster):
        self.world.end_job(cluster)

    @rule(cluster=CLUSTERS)
    def member_is_cut_off_or_returns(self, cluster):
        self.world.members[cluster].up = not self.world.members[cluster].up

    @rule(cluster=CLUSTERS)
    def copy_is_deleted_by_hand(self, cluster):
        self.world.delete_copy_by_hand(cluster)

    @rule(cluster=CLUSTERS)
    def name_is_taken(self, cluster):
        self.world.occupy_name(cluster)

    @rule()
    def user_deletes(self):
        self.world.delete_job()

    @rule()
    def user_strips_the_finalizer(self):
        self.world.strip_finalizer()

    @rule()
    def user_creates(self):
        self.world.create_job()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        while world.late:
            with contextlib.suppress(Refused):
                world.late.pop(0)()
        for name, member in world.members.items():
            member.up = True
            world.vacate_name(name)
            member.removed_copies.clear()
        dispatcher = Dispatcher(world)
        for _ in range(200):
            dispatcher.see_hub()
            for name in world.members:
                dispatcher.see_member(name)
                world.judge(name, fits=True)
                world.operate(name)
                world.admit(name)
                world.end_job(name)
                world.collect_garbage(name)
            dispatcher.step("done", "c1")
            sweep_orphans(world)
        self.check_end()

    def check_end(self) -> None:
        world = self.world
        if world.job is None:
            assert world.binding is None, "a record outlives its job for ever"
            for name, member in world.members.items():
                assert not member.reservations, f"a reservation is left in {name}"
                assert member.copy is None, f"a copy is left in {name}"
                assert not member.pods, f"pods are left in {name}"
            return
        assert world.binding is not None, "an acknowledged job was lost"
        spec = world.binding.spec
        assert spec.result is not None, f"the job never finished: {spec.attempt}"
        assert spec.result.released
        assert spec.charge is None
        assert all(not member.reservations for member in world.members.values())


TestFaults = Faults.TestCase
TestFaults.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
