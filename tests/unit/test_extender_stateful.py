"""Ledger and gangs under random histories: invariants 1, 2, 3 and 8 of the design.

Watch events come late, twice, reordered between objects, or are lost and relisted; POSTs lose their answers, are
processed late or never; clients go away; nodes come and go; the process loses leadership or is killed.
"""

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.extender_chaos import Chaos, capacity, cpu_of
from tests.unit.extender_objects import hub_pod, member, node, pod, pod_group, reservation, template
from tests.unit.extender_stage import copy

pick = st.integers(0, 10_000)


class Extender(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.chaos = Chaos()
        self.sizes: dict[str, tuple[int, int, int]] = {}
        """Gang -> (members, minimum, cpu of one)."""
        self.hub_jobs: dict[str, int] = {}
        """Job -> epoch of its reservation."""

    @initialize(sizes=st.lists(st.integers(2, 6), min_size=1, max_size=4))
    def cluster(self, sizes):
        for index, cpu in enumerate(sizes):
            self.chaos.put(node(f"n{index}", cpu=cpu))
        self.chaos.deliver_all()
        self.chaos.perform(self.chaos.core.hub_lease_seen(self.chaos.now))
        self.chaos.lead()

    # --- people and controllers ---

    @rule(members=st.integers(1, 4), spare=st.integers(0, 1), cpu=st.integers(1, 3), all_at_once=st.booleans())
    @precondition(lambda self: len(self.sizes) < 4)
    def new_gang(self, members, spare, cpu, all_at_once):
        name = f"g{self.chaos.serial()}"
        self.sizes[name] = (members, max(1, members - spare), cpu)
        self.chaos.put(pod_group(name, max(1, members - spare)))
        for index in range(members if all_at_once else 0):
            self.chaos.put(member(f"{name}-{index}", name, uid=f"uid-{self.chaos.serial()}", cpu=str(cpu)))

    @rule(which=pick, priority=st.sampled_from((0, 0, 5)))
    @precondition(lambda self: self.sizes)
    def new_member(self, which, priority):
        name = sorted(self.sizes)[which % len(self.sizes)]
        members, _, cpu = self.sizes[name]
        present = {p.metadata.name for p in self.chaos.pods.values()}
        for index in range(members):
            if f"{name}-{index}" not in present:
                uid = f"uid-{self.chaos.serial()}"
                self.chaos.put(member(f"{name}-{index}", name, uid=uid, cpu=str(cpu), priority=priority))
                return

    @rule(cpu=st.integers(1, 4), priority=st.sampled_from((0, 9)))
    @precondition(lambda self: len(self.chaos.pods) < 25)
    def new_plain_pod(self, cpu, priority):
        serial = self.chaos.serial()
        self.chaos.put(pod(f"plain-{serial}", uid=f"uid-{serial}", cpu=str(cpu), priority=priority))

    @rule(workers=st.integers(1, 3), cpu=st.integers(1, 2), claim=st.booleans())
    @precondition(lambda self: len(self.hub_jobs) < 3)
    def new_reservation(self, workers, cpu, claim):
        job = f"j{self.chaos.serial()}"
        self.hub_jobs[job] = 1
        roles = [
            {"name": "master", "count": 1, "minCount": 1, "template": template(cpu="1")},
            {"name": "worker", "count": workers, "minCount": workers, "template": template(cpu=str(cpu))},
        ]
        self.chaos.put(reservation(job, roles=roles, claim=claim))

    @rule(which=pick)
    @precondition(lambda self: self.hub_jobs)
    def dispatch(self, which):
        """The hub dispatches what is Reserved, then the operator makes the pods."""
        job = sorted(self.hub_jobs)[which % len(self.hub_jobs)]
        found = self.chaos.reservations.get(f"id-{job}-1")
        if found is None or found.status.state != "Reserved" or found.spec.state == "Dispatched":
            return
        changed = copy(found)
        changed.spec.state = "Dispatched"
        self.chaos.put(changed)
        for role in changed.spec.roles:
            cpu = role.template["spec"]["containers"][0]["resources"]["requests"]["cpu"]
            for index in range(role.count):
                self.chaos.put(hub_pod(job, role.name, index, uid=f"uid-{self.chaos.serial()}", cpu=cpu))

    @rule(which=pick)
    @precondition(lambda self: self.hub_jobs)
    def hub_evicts(self, which):
        """Reservation first, then the copy with its pods (PROTOCOL rule 3)."""
        job = sorted(self.hub_jobs)[which % len(self.hub_jobs)]
        del self.hub_jobs[job]
        self.chaos.remove_reservation(f"id-{job}-1")
        for uid in [uid for uid, p in self.chaos.pods.items() if p.metadata.name.startswith(f"{job}-")]:
            self.chaos.remove_pod(uid)

    @rule(which=pick)
    @precondition(lambda self: self.chaos.pods)
    def delete_pod(self, which):
        self.chaos.remove_pod(sorted(self.chaos.pods)[which % len(self.chaos.pods)])

    @rule(which=pick, phase=st.sampled_from(("Succeeded", "Failed")))
    @precondition(lambda self: any(p.spec.node_name and not p.finished for p in self.chaos.pods.values()))
    def finish_pod(self, which, phase):
        running = sorted(uid for uid, p in self.chaos.pods.items() if p.spec.node_name and not p.finished)
        ended = copy(self.chaos.pods[running[which % len(running)]])
        ended.status.phase = phase
        self.chaos.put(ended)

    @rule(which=pick)
    @precondition(lambda self: len(self.chaos.nodes) > 1)
    def cordon(self, which):
        changed = copy(self.chaos.nodes[sorted(self.chaos.nodes)[which % len(self.chaos.nodes)]])
        changed.spec.unschedulable = not changed.spec.unschedulable
        self.chaos.put(changed)

    @rule(which=pick)
    @precondition(lambda self: len(self.chaos.nodes) > 2)
    def lose_node(self, which):
        self.chaos.remove_node(sorted(self.chaos.nodes)[which % len(self.chaos.nodes)])

    @rule(cpu=st.integers(2, 6))
    @precondition(lambda self: len(self.chaos.nodes) < 5)
    def new_node(self, cpu):
        self.chaos.put(node(f"n{self.chaos.serial()}", cpu=cpu))

    # --- the watch ---

    @rule(which=pick, again=st.booleans())
    @precondition(lambda self: self.chaos.backlog)
    def deliver(self, which, again):
        self.chaos.deliver(which % len(self.chaos.backlog), again=again)

    @rule()
    @precondition(lambda self: self.chaos.backlog)
    def deliver_all(self):
        self.chaos.deliver_all()

    @rule()
    def relist(self):
        self.chaos.relist()

    # --- kube-scheduler ---

    @rule(which=pick, sample=st.integers(1, 5), blind=st.booleans())
    @precondition(lambda self: self.chaos.leads and self.chaos.pending())
    def schedule(self, which, sample, blind):
        """blind: the scheduler's cache lags so far that every node looks free."""
        pending = sorted(self.chaos.pending())
        uid = pending[which % len(pending)]
        names = sorted(self.chaos.nodes) if blind else self.chaos.offered(uid)
        start = which % max(1, len(names))
        names = (names[start:] + names[:start])[:sample]
        if names:
            self.chaos.schedule(uid, names)

    @rule()
    @precondition(lambda self: self.chaos.leads and self.chaos.pending())
    def schedule_all(self):
        for uid in self.chaos.pending():
            if uid in self.chaos.pods and uid not in self.chaos.assumed and (names := self.chaos.offered(uid)):
                self.chaos.schedule(uid, names)

    @rule(which=pick, where=pick)
    @precondition(lambda self: self.chaos.leads and self.chaos.pending())
    def bind_anywhere(self, which, where):
        """A bind that `filter` never answered, to any node."""
        pending = sorted(self.chaos.pending())
        names = sorted(self.chaos.nodes)
        self.chaos.bind(pending[which % len(pending)], names[where % len(names)])

    @rule(which=pick)
    @precondition(lambda self: self.chaos.calls)
    def abandon(self, which):
        self.chaos.abandon(sorted(self.chaos.calls)[which % len(self.chaos.calls)])

    # --- the API server ---

    @rule(which=pick, how=st.sampled_from(("bound", "bound", "bound", "lost", "ghost", "rejected", "fenced")))
    @precondition(lambda self: self.chaos.posts)
    def answer_post(self, which, how):
        self.chaos.answer_post(which % len(self.chaos.posts), how)

    @rule(which=pick, applied=st.booleans())
    @precondition(lambda self: self.chaos.ghosts)
    def haunt(self, which, applied):
        self.chaos.haunt(which % len(self.chaos.ghosts), applied=applied)

    @rule(which=pick, failure=st.sampled_from(("", "", "", "timeout")))
    @precondition(lambda self: self.chaos.rechecks)
    def answer_recheck(self, which, failure):
        self.chaos.answer_recheck(which % len(self.chaos.rechecks), failure)

    # --- time and processes ---

    @rule(how=st.sampled_from(("bound", "bound", "bound", "lost", "ghost")), seconds=st.sampled_from((0.1, 1.0)))
    @precondition(lambda self: self.chaos.leads)
    def a_normal_second(self, how, seconds):
        """Everything delivered, every pod tried once, every POST answered: most of them well."""
        chaos = self.chaos
        chaos.deliver_all()
        self.schedule_all()
        for _ in range(3):
            chaos.deliver_all()
            while chaos.rechecks:
                chaos.answer_recheck(0, "")
            if chaos.posts:
                chaos.answer_post(len(chaos.posts) - 1, how)
            while chaos.posts:
                chaos.answer_post(0, "bound")
            chaos.deliver_all()
            chaos.pass_time(seconds)

    @rule(seconds=st.sampled_from((0.1, 1.0, 3.0, 8.0, 40.0)))
    def pass_time(self, seconds):
        self.chaos.pass_time(seconds)

    @rule()
    @precondition(lambda self: self.chaos.leads)
    def stand_down(self):
        self.chaos.stand_down()

    @rule()
    @precondition(lambda self: not self.chaos.leads)
    def lead(self):
        self.chaos.lead()

    @rule()
    def kill(self):
        self.chaos.kill()

    # --- what must hold ---

    @invariant()
    def no_node_is_overcommitted(self):
        self.chaos.check()

    def teardown(self):
        chaos = self.chaos
        if not chaos.nodes:
            return
        chaos.quiet()
        self._whole_or_nothing()
        self._the_last_gang_lands()
        self._nothing_is_left()

    def _whole_or_nothing(self):
        """Invariant 1: settled, a gang has none or at least its minimum (finished members count)."""
        world = self.chaos.core._world
        for key, gang in world.gangs.items():
            running = [m for m in gang.members.values() if m.node and not m.finished]
            if running and not gang.ended_ok and gang.state != "healing":
                assert gang.minimum_met(), (key, gang.state)
        for name in self.sizes:
            pods = [p for p in self.chaos.pods.values() if p.metadata.name.startswith(f"{name}-")]
            bound = [p for p in pods if p.spec.node_name and not p.finished]
            if bound and len(pods) >= self.sizes[name][1]:
                gang = world.gangs[f"default/{name}"]
                assert gang.state in ("landed", "healing"), gang.state

    def _the_last_gang_lands(self):
        """Invariant 3: everything else gone, a gang that fits the cluster lands."""
        chaos = self.chaos
        for uid in list(chaos.pods):
            chaos.remove_pod(uid)
        for name in list(chaos.reservations):
            chaos.remove_reservation(name)
        for closed in list(chaos.nodes.values()):
            if closed.spec.unschedulable:
                opened = copy(closed)
                opened.spec.unschedulable = False
                chaos.put(opened)
        chaos.quiet(3)
        fits = sum(capacity(each) // 2000 for each in chaos.nodes.values())
        members = [member(f"last-{i}", "last", uid=f"uid-last-{i}", cpu="2") for i in range(fits)]
        chaos.put(pod_group("last", fits))
        for each in members:
            chaos.put(each)
        chaos.quiet(6)
        landed = [p for p in chaos.pods.values() if p.spec.node_name]
        assert len(landed) == fits
        assert all(cpu_of(p) == 2000 for p in landed)

    def _nothing_is_left(self):
        """Invariant 8."""
        chaos = self.chaos
        for uid in list(chaos.pods):
            chaos.remove_pod(uid)
        for name in list(chaos.groups):
            chaos.remove_group(name)
        chaos.quiet(1)
        chaos.pass_time(700)
        sizes = chaos.core.metrics().sizes
        rooms = sizes.pop("rooms")
        assert rooms == len(chaos.nodes)
        assert not any(sizes.values()), sizes


TestExtender = Extender.TestCase
TestExtender.settings = settings(
    max_examples=int(os.environ.get("EXTENDER_STATEFUL_EXAMPLES", "150")),
    report_multiple_bugs=False,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
