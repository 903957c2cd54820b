"""Leadership, heartbeats and followed Leases against a simulated API server in virtual time."""

import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kube.api.api import LEASES, NAMESPACES
from kube.api.errors import Unreachable
from kube.api.leases import Heartbeat, LeaderElector, LeaseFollower
from tests.simulation.apiserver import ApiServer
from tests.simulation.apiserver_client import SimulatedApi
from tests.simulation.apiserver_faults import Fault, Faults
from tests.simulation.clock import VirtualClock, run_virtual, until, virtual

NS = "muster-system"


class Candidate:
    """One process with its own network, clock and elector (15 s lease, 5 s margin, 2 s retry, 3 s calls)."""

    def __init__(self, server, identity, *, faults=None, skew=0.0, **options):
        self.api = SimulatedApi(server, identity, faults or Faults(Random(identity)))
        self.log: list[tuple[str, float]] = []
        self.clock = VirtualClock(skew, origin=1000.0 * len(identity) + ord(identity[0]))
        self.elector = LeaderElector(
            self.api,
            self.clock,
            name="muster-dispatcher",
            namespace=NS,
            identity=identity,
            rng=Random(identity),
            on_started=lambda: self.log.append(("started", round(self.time(), 1))),
            on_stopped=lambda: self.log.append(("stopped", round(self.time(), 1))),
            **options,
        )
        self.task: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def time(self):
        return asyncio.get_running_loop().time()

    def start(self):
        self.task = asyncio.ensure_future(self.elector.run())
        return self

    async def end(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def kill(self):
        self.api.kill()
        await self.end()

    @property
    def leading(self):
        return self.elector.leading


def lease(server):
    return server.existing(LEASES, "muster-dispatcher", NS)


@virtual
async def test_the_first_to_come_leads_and_renews():
    server = ApiServer()
    a = Candidate(server, "a").start()
    await a.elector.wait_leading()
    # 15 s lease less 5 s margin, counted from before the request was sent.
    assert 9.9 < a.elector.fence() <= 10
    assert lease(server)["spec"]["holderIdentity"] == "a"
    assert lease(server)["spec"]["leaseDurationSeconds"] == 15
    assert lease(server)["spec"]["leaseTransitions"] == a.elector.transitions == 0
    b = Candidate(server, "b").start()
    await asyncio.sleep(3600)
    assert a.log == [("started", 0.0)]
    assert b.log == []
    assert lease(server)["spec"]["acquireTime"][:16] == "2026-08-01T12:00"
    assert lease(server)["spec"]["renewTime"][:16] in {"2026-08-01T12:59", "2026-08-01T13:00"}
    assert b.elector.holder() == "a"
    assert b.elector.fence() == 0
    assert a.elector.fence() > 7.9
    await a.end()
    await b.end()


@virtual
async def test_a_clean_stop_hands_over_at_once():
    server = ApiServer()
    a, b = Candidate(server, "a").start(), Candidate(server, "b").start()
    await a.elector.wait_leading()
    await a.end()
    assert not a.leading
    assert lease(server)["spec"]["holderIdentity"] == ""
    await asyncio.wait_for(b.elector.wait_leading(), 3)
    assert b.elector.transitions == 1
    await b.end()


@virtual
async def test_a_killed_leader_is_replaced_when_its_lease_has_run_out():
    server = ApiServer()
    a, b = Candidate(server, "a").start(), Candidate(server, "b").start()
    await asyncio.sleep(100)
    await a.kill()
    assert lease(server)["spec"]["holderIdentity"] == "a", "a dead process releases nothing"
    took = await until(lambda: b.leading)
    # At most 15 s from the last renewal that b saw (its own reads are up to 2.4 s apart), then its next try.
    assert 12 < took < 15 + 2 * 2.4 + 0.1
    await b.end()


@pytest.mark.parametrize(("retry", "call"), [(2.0, 3.0), (1.5, 3.0), (0.7, 3.0)])
@virtual
async def test_a_leader_without_a_server_stops_before_anybody_can_take_over(retry, call):
    """Whether the leadership ends during a renewal or between two, work is told on time."""
    server = ApiServer()
    a = Candidate(server, "a", retry_seconds=retry, call_seconds=call).start()
    await a.elector.wait_leading()
    b = Candidate(server, "b").start()
    await asyncio.sleep(100)
    a.api.cut(silently=True)
    began = a.time()
    ends = began + a.elector.fence()
    await a.elector.wait_lost()
    stopped = a.time() - began
    assert began + stopped == pytest.approx(ends, abs=0.001)
    assert stopped <= 10, "margin kept"
    assert not b.leading
    took = stopped + await until(lambda: b.leading)
    assert took - stopped > 4.9, "b took over no earlier than the margin after a had stopped"
    a.api.heal()
    await asyncio.sleep(100)
    assert not a.leading
    assert [what for what, _ in a.log] == ["started", "stopped"]
    await a.end()
    await b.end()


@virtual
async def test_leading_is_judged_by_the_clock_not_by_the_loop():
    """A process that was stopped and continues asks `leading` before any of its tasks has run."""
    server = ApiServer()

    class Suspended(VirtualClock):
        slept = 0.0

        def monotonic(self):
            return super().monotonic() + self.slept

    a = Candidate(server, "a")
    a.clock = Suspended()
    a.elector._clock = a.clock
    a.start()
    await a.elector.wait_leading()
    a.clock.slept = 60
    assert not a.leading
    assert a.elector.fence() == 0
    await a.elector.wait_lost()
    # Nobody took it: it leads again, but as a new term, since work was stopped.
    await a.elector.wait_leading()
    assert [what for what, _ in a.log] == ["started", "stopped", "started"]
    await a.end()


@virtual
async def test_a_term_that_lapsed_during_its_renewal_is_over():
    """The process is stopped between sending the renewal and reading the answer: good news of the past."""
    server = ApiServer()

    class Suspended(VirtualClock):
        slept = 0.0

        def monotonic(self):
            return super().monotonic() + self.slept

    a = Candidate(server, "a")
    a.elector._clock = clock = Suspended()
    a.start()
    await a.elector.wait_leading()

    def suspend(change):
        clock.slept = 60

    server.observe(suspend)
    await asyncio.wait_for(a.elector.wait_lost(), 5)
    await a.elector.wait_leading()
    assert [what for what, _ in a.log] == ["started", "stopped", "started"]
    await a.end()


@virtual
async def test_one_lost_renewal_costs_nothing():
    server = ApiServer()
    a = Candidate(server, "a").start()
    await a.elector.wait_leading()
    for fault in (Fault.HANG, Fault.LOST, Fault.REFUSED, Fault.ERROR, Fault.BUSY, Fault.ERROR_DONE):
        a.api.faults.tell(fault, verb="update")
        await asyncio.sleep(30)
        assert a.leading, fault
    assert [what for what, _ in a.log] == ["started"]
    await a.end()


@virtual
async def test_somebody_annotates_the_lease():
    """A write by others between two renewals: Conflict, read, renewed in the same attempt; the annotation stays."""
    server = ApiServer()
    a = Candidate(server, "a").start()
    await a.elector.wait_leading()
    server.patch(LEASES, "muster-dispatcher", {"metadata": {"annotations": {"note": "x"}}}, NS)
    await asyncio.sleep(5)
    assert a.elector.trouble is None
    assert a.elector.fence() > 7
    assert lease(server)["metadata"]["annotations"] == {"note": "x"}
    await a.end()


@virtual
async def test_a_deleted_lease_is_made_again():
    server = ApiServer()
    a = Candidate(server, "a").start()
    await a.elector.wait_leading()
    server.delete(LEASES, "muster-dispatcher", NS)
    await asyncio.sleep(5)
    assert a.leading
    assert lease(server)["spec"]["holderIdentity"] == "a"
    await a.end()


@virtual
async def test_a_late_renewal_of_the_old_leader_does_not_unseat_the_new_one():
    server = ApiServer()
    a = Candidate(server, "a", faults=Faults(Random(1), late_seconds=60)).start()
    await a.elector.wait_leading()
    b = Candidate(server, "b").start()
    a.api.faults.tell(Fault.LATE, verb="update")
    await asyncio.sleep(2.5)
    await a.kill()
    await until(lambda: b.leading)
    await asyncio.sleep(120)
    late = [entry for entry in server.audit if entry.request.user == "a" and entry.request.verb == "update"]
    assert [entry.outcome for entry in late] == ["Conflict"]
    assert b.leading
    assert [what for what, _ in b.log] == ["started"]
    await b.end()


@virtual
async def test_the_same_identity_takes_its_own_lease_at_once():
    server = ApiServer()
    a = Candidate(server, "a").start()
    await a.elector.wait_leading()
    await a.kill()
    again = Candidate(server, "a").start()
    await asyncio.wait_for(again.elector.wait_leading(), 0.1)
    await again.end()


@virtual
async def test_the_namespace_is_not_there_yet():
    server = ApiServer(namespaces=())
    a = Candidate(server, "a").start()
    await asyncio.sleep(10)
    assert not a.leading
    assert a.elector.trouble is not None
    server.create(NAMESPACES, {"metadata": {"name": NS}}, "")
    await asyncio.wait_for(a.elector.wait_leading(), 3)
    assert a.elector.trouble is None
    await a.end()


@virtual
async def test_times_that_do_not_fit_are_refused():
    api, clock = SimulatedApi(ApiServer()), VirtualClock()
    with pytest.raises(ValueError, match="shorter than"):
        LeaderElector(api, clock, name="", namespace="", identity="a", lease_seconds=9)
    with pytest.raises(ValueError, match="identity"):
        LeaderElector(api, clock, name="", namespace="", identity="")


# lead() -----------------------------------------------------------------------------------------------------------


@virtual
async def test_work_runs_exactly_while_leading():
    server = ApiServer()
    a, b = Candidate(server, "a"), Candidate(server, "b")
    running = []

    def work(candidate):
        async def run():
            running.append(candidate)
            assert running == [candidate], "two at work"
            try:
                await asyncio.Event().wait()
            finally:
                running.remove(candidate)

        return run

    tasks = [asyncio.ensure_future(c.elector.lead(work(c))) for c in (a, b)]
    await until(lambda: running == [a])
    a.api.cut(silently=True)
    await until(lambda: not running)
    assert not b.leading
    await until(lambda: running == [b])
    a.api.heal()
    tasks[1].cancel()
    await asyncio.gather(tasks[1], return_exceptions=True)
    assert lease(server)["spec"]["holderIdentity"] == "", "work ended, then released"
    await until(lambda: running == [a], within=5)
    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert running == []


@virtual
async def test_what_work_raises_is_raised_and_the_lease_released():
    server = ApiServer()
    a = Candidate(server, "a")

    async def work():
        await asyncio.sleep(1)
        raise LookupError("bug")

    with pytest.raises(LookupError):
        await a.elector.lead(work)
    assert lease(server)["spec"]["holderIdentity"] == ""


@virtual
async def test_work_that_returns_ends_it():
    server = ApiServer()
    a = Candidate(server, "a")

    async def work():
        await asyncio.sleep(1)

    await a.elector.lead(work)
    assert lease(server)["spec"]["holderIdentity"] == ""


@virtual
async def test_what_work_raises_while_it_is_stopped_is_not_swallowed():
    server = ApiServer()
    a = Candidate(server, "a")

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            raise LookupError("bug in the clean-up")

    task = asyncio.ensure_future(a.elector.lead(work))
    await a.elector.wait_leading()
    a.api.cut()
    with pytest.raises(LookupError):
        await task


# Any faults -------------------------------------------------------------------------------------------------------


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["cut", "cut silently", "heal", "kill", "stop server", "continue server", "clean stop", "wait"]
        ),
        st.sampled_from(["a", "b", "c"]),
        st.floats(0.1, 30),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(EVENTS, st.integers(0, 10_000))
def test_never_two_leaders_and_always_one_in_the_end(events, seed):
    """Three candidates, any faults: their terms never overlap, and there are margins between them."""

    async def story():
        server = ApiServer(rng=Random(seed))
        rates = dict.fromkeys(Fault, 0.03)
        candidates = {}

        def candidate(identity, generation=0):
            faults = Faults(Random(f"{seed}{identity}"), rates=rates, latency=(0.001, 0.5))
            candidates[identity] = Candidate(server, f"{identity}{generation}", faults=faults).start()

        for identity in ("a", "b", "c"):
            candidate(identity)

        overlaps = []

        async def look():
            while True:
                leading = [c.elector.identity for c in candidates.values() if c.leading]
                if len(leading) > 1:
                    overlaps.append(leading)
                await asyncio.sleep(0.05)

        looking = asyncio.ensure_future(look())
        for number, (what, who, seconds) in enumerate(events):
            c = candidates[who]
            match what:
                case "cut":
                    c.api.cut()
                case "cut silently":
                    c.api.cut(silently=True)
                case "heal":
                    c.api.heal()
                case "kill":
                    await c.kill()
                    candidate(who, number + 1)
                case "clean stop":
                    await c.end()
                    candidate(who, number + 1)
                case "stop server":
                    server.stop()
                case "continue server":
                    server.go_on()
            await asyncio.sleep(seconds)
        for c in candidates.values():
            c.api.heal()
            c.api.faults.calm = True
        server.go_on()
        await until(lambda: any(c.leading for c in candidates.values()), within=60)
        assert overlaps == []
        looking.cancel()
        for c in candidates.values():
            await c.end()

    run_virtual(story(), rng=Random(seed))


# Heartbeats -------------------------------------------------------------------------------------------------------


def heartbeat(api, holder="hub-1", lease_seconds=30, every_seconds=5.0, annotations=dict):
    return Heartbeat(
        api,
        VirtualClock(),
        name="muster-hub",
        namespace=NS,
        holder=holder,
        lease_seconds=lease_seconds,
        every_seconds=every_seconds,
        annotations=annotations,
    )


@virtual
async def test_a_heartbeat_beats_and_keeps_what_others_wrote():
    server = ApiServer()
    count = 0

    def annotations(there):
        nonlocal count
        count += 1
        return {"muster.dev/incarnation": "7", "seen": there.get("note", "")}

    heart = heartbeat(SimulatedApi(server), annotations=annotations)
    task = asyncio.ensure_future(heart.run())
    await asyncio.sleep(12)
    server.patch(LEASES, "muster-hub", {"metadata": {"annotations": {"note": "x"}, "labels": {"l": "v"}}}, NS)
    await asyncio.sleep(10)
    doc = server.existing(LEASES, "muster-hub", NS)
    assert doc["metadata"]["annotations"] == {"muster.dev/incarnation": "7", "note": "x", "seen": "x"}
    assert doc["metadata"]["labels"] == {"l": "v"}
    assert doc["spec"]["holderIdentity"] == "hub-1"
    assert heart.renewed_at is not None
    assert heart.trouble is None
    writes = [e for e in server.audit if e.request.verb in {"update", "create"}]
    assert [e.outcome for e in writes] == ["ok", "ok", "ok", "Conflict", "ok", "ok"]
    reads = [e for e in server.audit if e.request.verb == "get"]
    assert len(reads) == 2, "read once at first and once after the conflict"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@virtual
async def test_a_heartbeat_that_may_not_beat():
    """A fenced member: the hub does not renew."""
    server = ApiServer()
    heart = heartbeat(SimulatedApi(server), annotations=lambda _: None)
    assert await heart.beat() is None
    assert server.doc(LEASES, "muster-hub", NS) is None
    assert heart.renewed_at is None


@virtual
async def test_a_heartbeat_looks_again_before_it_overwrites_a_rival():
    """The old leader finds a higher incarnation and leaves it alone."""
    server = ApiServer()

    def hub(incarnation):
        def annotations(there):
            if int(there.get("muster.dev/incarnation", "0")) > incarnation:
                return None
            return {"muster.dev/incarnation": str(incarnation)}

        return heartbeat(SimulatedApi(server), holder=f"hub-{incarnation}", annotations=annotations)

    old, new = hub(1), hub(2)
    assert await old.beat()
    assert await new.beat()
    assert await old.beat() is None
    assert server.existing(LEASES, "muster-hub", NS)["spec"]["holderIdentity"] == "hub-2"
    assert await new.beat()


@virtual
async def test_a_heartbeat_goes_on_after_failures():
    server = ApiServer()
    api = SimulatedApi(server)
    heart = heartbeat(api)
    task = asyncio.ensure_future(heart.run())
    await asyncio.sleep(6)
    api.cut()
    await asyncio.sleep(10)
    assert isinstance(heart.trouble, Unreachable)
    api.heal()
    await asyncio.sleep(6)
    assert heart.trouble is None
    server.delete(LEASES, "muster-hub", NS)
    await asyncio.sleep(6)
    assert server.doc(LEASES, "muster-hub", NS) is not None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# Following --------------------------------------------------------------------------------------------------------


@virtual
async def test_following_a_scheduler():
    server = ApiServer()
    api = SimulatedApi(server)
    follower = LeaseFollower(api, VirtualClock(), name="kube-scheduler", namespace="kube-system", every_seconds=1.0)
    task = asyncio.ensure_future(follower.run())
    await asyncio.sleep(2)
    assert follower.holder() == ""
    assert follower.fence("node-1_") == 0
    assert follower.silence() == float("inf")

    def scheduler(identity):
        return Heartbeat(
            SimulatedApi(server),
            VirtualClock(),
            name="kube-scheduler",
            namespace="kube-system",
            holder=identity,
            lease_seconds=15,
            every_seconds=2.0,
        )

    beating = asyncio.ensure_future(scheduler("node-1_abc").run())
    await asyncio.sleep(30)
    assert follower.held_by("node-1_")
    assert follower.held_by("node-1_abc")
    assert not follower.held_by("node-1")
    assert not follower.held_by("")
    assert not follower.held_by("node-2_")
    # Renewed every 2 s, read every second, each counted from the read before the one that saw it.
    assert 15 - 2 - 2 * 1.1 < follower.fence("node-1_") <= 15
    assert follower.silence() < 2.2
    beating.cancel()
    await asyncio.sleep(14)
    assert follower.fence("node-1_") < 1.5, "the fence ends before our own count of the lease"
    await asyncio.sleep(4)
    assert follower.holder() == "", "expired"
    await scheduler("node-2_xyz").beat()
    await asyncio.sleep(2)
    assert follower.held_by("node-2_")
    assert follower.fence("node-1_") == 0
    task.cancel()
    await asyncio.gather(task, beating, return_exceptions=True)


@virtual
async def test_the_first_read_proves_no_renewal():
    """An old lease that nobody renews: held by our count for one duration, but never a fence."""
    server = ApiServer()
    heart = heartbeat(SimulatedApi(server))
    await heart.beat()
    await asyncio.sleep(1000)
    follower = LeaseFollower(SimulatedApi(server), VirtualClock(), name="muster-hub", namespace=NS)
    await follower.read()
    assert follower.holder() == "hub-1"
    assert follower.fence("hub-1") == 0
    assert follower.renewals == 0
    await heart.beat()
    await follower.read()
    assert follower.renewals == 1
    assert follower.fence("hub-1") > 29


@virtual
async def test_the_fence_counts_from_before_the_renewal_however_late_it_is_read():
    server = ApiServer()
    heart = heartbeat(SimulatedApi(server))
    api = SimulatedApi(server)
    follower = LeaseFollower(api, VirtualClock(), name="muster-hub", namespace=NS, every_seconds=1.0)
    task = asyncio.ensure_future(follower.run())
    await heart.beat()
    await asyncio.sleep(5)
    await heart.beat()
    renewed = asyncio.get_running_loop().time()
    api.cut()  # our network is away while the renewal grows old
    await asyncio.sleep(20)
    api.heal()
    await asyncio.sleep(1.5)
    left = follower.fence("hub-1")
    assert left <= renewed + 30 - asyncio.get_running_loop().time(), "no longer than the holder itself may count"
    assert left > 0
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@given(st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_the_fence_is_never_longer_than_the_truth(seed):
    """Slow networks, lost calls: what the follower counts on has been renewed on the server at least that late."""

    async def story():
        rng = Random(seed)
        server = ApiServer(rng=rng)
        loop = asyncio.get_running_loop()
        renewed = []
        server.observe(lambda change: renewed.append(loop.time()) if change.kind[1] == "leases" else None)
        slow = Faults(Random(seed), latency=(0.0, 2.0), rates={Fault.LOST: 0.1, Fault.SLOW: 0.1, Fault.REFUSED: 0.1})
        heart = heartbeat(SimulatedApi(server, faults=Faults(rng, latency=(0, 1))), lease_seconds=10, every_seconds=1.5)
        follower = LeaseFollower(SimulatedApi(server, faults=slow), VirtualClock(), name="muster-hub", namespace=NS)
        tasks = [asyncio.ensure_future(part.run()) for part in (heart, follower)]
        held = 0
        for _ in range(400):
            await asyncio.sleep(0.25)
            fence = follower.fence("hub-1")
            if fence:
                held += 1
                assert loop.time() + fence <= renewed[-1] + 10 + 1e-6
        assert held, "the test tests something"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run_virtual(story())


@virtual
async def test_a_follower_is_told_of_changes():
    server = ApiServer()
    calls = []
    follower = LeaseFollower(
        SimulatedApi(server), VirtualClock(), name="muster-hub", namespace=NS, on_change=lambda: calls.append(1)
    )
    await follower.read()
    await follower.read()
    assert len(calls) == 1
    heart = heartbeat(SimulatedApi(server))
    await heart.beat()
    await follower.read()
    server.patch(LEASES, "muster-hub", {"metadata": {"annotations": {"a": "b"}}}, NS)
    await follower.read()
    assert len(calls) == 2, "an annotation is no renewal"
    assert follower.lease is not None
    assert (follower.lease.metadata.annotations or {}) == {"a": "b"}
