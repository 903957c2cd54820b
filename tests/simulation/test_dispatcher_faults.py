"""Dispatchers that die at every step, answers that get lost, members that vanish: the job runs once and to its end."""

from random import Random

import pytest

from kube.api.api import BINDINGS, PYTORCH_JOBS, RESERVATIONS
from tests.simulation.apiserver_faults import Fault
from tests.simulation.clock import settled, virtual
from tests.simulation.dispatcher_fleet import PlayedFleet

SMALL = {"c1": 4, "c2": 4}

WRITES = [
    ("create", "resourcebindings"),
    ("patch", "pytorchjobs"),
    ("update", "resourcebindings"),
    ("create", "gangreservations"),
    ("update", "gangreservations"),
    ("create", "podgroups"),
    ("create", "pytorchjobs"),
    ("delete", "gangreservations"),
    ("delete", "pytorchjobs"),
    ("delete", "resourcebindings"),
]


@pytest.mark.parametrize(("verb", "resource"), WRITES)
@pytest.mark.parametrize("fault", [Fault.LOST, Fault.LATE])
def test_a_lost_answer_at_any_write(verb, resource, fault):
    @virtual
    async def story():
        async with PlayedFleet(Random(3), SMALL) as fleet:
            await fleet.start()
            await fleet.ready()
            for faults in fleet.faults.values():
                faults.tell(fault, verb=verb, resource=resource)
            await whole_life(fleet)

    story()


@pytest.mark.parametrize(("verb", "resource"), WRITES)
@pytest.mark.parametrize("done", [True, False])
def test_kill_9_at_any_write(verb, resource, done):
    """Right before the request is sent, and right after it was carried out."""

    @virtual
    async def story():
        async with PlayedFleet(Random(4), SMALL) as fleet:
            await fleet.start()
            await fleet.ready()
            for faults in fleet.faults.values():
                faults.tell(Fault.LOST if done else Fault.HANG, verb=verb, resource=resource)
            hit = _next_request(fleet, verb, resource)
            fleet.policy()
            fleet.submit("train", 1, run_for=20.0)
            deleted = False
            for _ in range(2000):
                if hit():
                    break
                if fleet.state("train") == "Succeeded" and not deleted:
                    fleet.delete("train")
                    deleted = True
                await settled(0.05)
            await fleet.kill()
            await settled(1)
            await fleet.start()
            if not deleted:
                await fleet.until(lambda: fleet.state("train") == "Succeeded", 400)
                fleet.delete("train")
            await fleet.until(lambda: fleet.job("train") is None, 400)
            await fleet.until(lambda: fleet.left() == [])

    story()


def _next_request(fleet, verb, resource):
    """Whether a matching write has reached any server, or was drawn to hang, since now."""
    told = {name: len(faults._told) for name, faults in fleet.faults.items()}
    return lambda: any(len(faults._told) < told[name] for name, faults in fleet.faults.items())


async def whole_life(fleet):
    fleet.policy()
    fleet.submit("train", 1, run_for=20.0)
    await fleet.until(lambda: fleet.state("train") == "Succeeded", 600)
    fleet.delete("train")
    await fleet.until(lambda: fleet.job("train") is None, 600)
    await fleet.until(lambda: fleet.left() == [], 200)


@virtual
async def test_a_member_that_hangs_slows_nobody_else():
    """F5: it accepts, and never answers."""
    async with PlayedFleet(Random(5), SMALL) as fleet:
        await fleet.start()
        await fleet.ready()
        fleet.members["c1"].server.stop()
        fleet.policy()
        fleet.submit("a", 1)
        fleet.submit("b", 1)
        took = await fleet.until(lambda: "Running" in (fleet.state("a"), fleet.state("b")), 60)
        assert took < 60
        await fleet.until(lambda: fleet.state("a") == fleet.state("b") == "Running", 200)
        fleet.members["c1"].server.go_on()
        await settled(60)
        assert not fleet.violations


@virtual
async def test_an_unreachable_member_proves_nothing():
    """Rule 15: its job is neither re-placed nor released; when it comes back all goes on."""
    async with PlayedFleet(Random(6), SMALL) as fleet:
        await fleet.start()
        await fleet.ready()
        fleet.policy()
        fleet.submit("train", 3)
        await fleet.until(lambda: fleet.state("train") == "Running")
        cluster = fleet.attempt("train")["cluster"]
        fleet.clients[cluster].cut()
        await settled(3600)
        assert fleet.attempt("train")["cluster"] == cluster
        assert fleet.state("train") == "Running", "the last that was seen stays"
        await fleet.until(lambda: "now:" in fleet.condition("train", "Scheduled")["message"])
        fleet.members[cluster].finish("train")
        fleet.clients[cluster].heal()
        await fleet.until(lambda: fleet.state("train") == "Succeeded")


@virtual
async def test_a_member_cut_off_before_scheduled_does_not_hold_the_job():
    async with PlayedFleet(Random(7), SMALL) as fleet:
        await fleet.start()
        await fleet.members_ready()
        fleet.policy()
        fleet.members["c1"].extender_runs = fleet.members["c2"].extender_runs = False
        fleet.submit("train", 3)
        await fleet.until(lambda: fleet.attempt("train").get("state") == "Reserving")
        cluster = fleet.attempt("train")["cluster"]
        other = "c2" if cluster == "c1" else "c1"
        fleet.clients[cluster].cut(silently=True)
        fleet.members[other].extender_runs = True
        await fleet.until(lambda: fleet.state("train") == "Running", 300)
        assert fleet.where("train") == [other]


@virtual
async def test_a_gang_that_does_not_land_is_taken_back_and_goes_elsewhere():
    """F6: after the landing deadline."""
    async with PlayedFleet(Random(8), {"c1": 4, "c2": 8}) as fleet:
        await fleet.start()
        await fleet.members_ready()
        fleet.members["c1"].operator_runs = False
        fleet.policy()
        fleet.submit("train", 3)
        await fleet.until(lambda: fleet.where("train") == ["c1"])
        took = await fleet.until(lambda: fleet.state("train") == "Running", 1200)
        assert 600 <= took < 700
        assert fleet.where("train") == ["c2"]
        assert fleet.events("Evicted")


@virtual
async def test_deletion_while_the_member_is_away_is_finished_when_it_returns():
    """F25: the binding stays as the tombstone, even if somebody strips the finalizer."""
    async with PlayedFleet(Random(9), {"c1": 4}) as fleet:
        await fleet.start()
        await fleet.ready()
        fleet.policy()
        fleet.submit("train", 3)
        await fleet.until(lambda: fleet.state("train") == "Running")
        fleet.clients["c1"].cut()
        fleet.delete("train")
        await settled(120)
        assert fleet.job("train") is not None
        fleet.hub.patch(PYTORCH_JOBS, "train", {"metadata": {"finalizers": None}}, "default")
        await settled(60)
        assert fleet.job("train") is None
        assert fleet.binding("train") is not None
        fleet.clients["c1"].heal()
        await fleet.until(lambda: fleet.left() == [], 200)


@virtual
async def test_a_restart_changes_nothing():
    """F15: with jobs in every state."""
    async with PlayedFleet(Random(10), {"c1": 4, "c2": 4}) as fleet:
        await fleet.start()
        await fleet.ready()
        fleet.policy()
        fleet.submit("done", 1, run_for=5.0)
        await fleet.until(lambda: fleet.state("done") == "Succeeded")
        fleet.submit("runs", 3)
        await fleet.until(lambda: fleet.state("runs") == "Running")
        fleet.submit("waits", 6)
        await fleet.until(lambda: bool(fleet.condition("waits", "Scheduled")))
        before = {b["metadata"]["name"]: b["spec"] for b in fleet.hub.docs(BINDINGS)}
        await fleet.kill()
        await fleet.start()
        await fleet.ready()
        await settled(60)
        assert {b["metadata"]["name"]: b["spec"] for b in fleet.hub.docs(BINDINGS)} == before
        assert fleet.where("done"), "never dispatched again, never removed"


@virtual
async def test_a_dispatcher_that_was_stopped_beyond_its_lease_does_no_harm():
    """Rule 10: a second one has taken over; what the first had under way is fenced by its preconditions."""
    async with PlayedFleet(Random(11), SMALL) as fleet:
        await fleet.start()
        await fleet.ready()
        fleet.policy()
        fleet.submit("a", 1, run_for=30.0)
        first = fleet.clients
        for client in first.values():
            client.cut(silently=True)
        task, fleet._task = fleet._task, None
        assert task is not None
        await settled(1)
        await fleet.start()
        await fleet.ready(60)
        for client in first.values():
            client.heal()
        await fleet.until(lambda: fleet.state("a") == "Succeeded")
        fleet.submit("b", 1, run_for=30.0)
        await fleet.until(lambda: fleet.state("b") == "Succeeded")
        for client in first.values():
            client.kill()
        task.cancel()
        await settled(1)
        assert not fleet.violations


@virtual
async def test_orphans_of_a_lost_hub_are_left_running_and_dead_leftovers_removed():
    async with PlayedFleet(Random(12), {"c1": 4}) as fleet:
        await fleet.start()
        await fleet.ready()
        fleet.policy()
        fleet.submit("train", 1)
        await fleet.until(lambda: fleet.state("train") == "Running")
        await fleet.kill()
        hub_id = (fleet.binding("train") or {})["spec"]["hubID"]
        fleet.hub.patch(BINDINGS, "train-pytorchjob", {"metadata": {"finalizers": None}}, "default")
        fleet.hub.delete(BINDINGS, "train-pytorchjob", "default")
        fleet.hub.patch(PYTORCH_JOBS, "train", {"metadata": {"finalizers": None}}, "default")
        fleet.delete("train")
        leftover = {
            "metadata": {"name": "gone-1"},
            "spec": {
                "hubID": hub_id, "id": "gone", "epoch": 1, "jobNamespace": "default", "jobName": "gone",
                "state": "Pending", "roles": [], "minMember": 1, "ttlSeconds": 60, "landingDeadlineSeconds": 600,
            },
        }  # fmt: skip
        server = fleet.members["c1"].server
        server.create(RESERVATIONS, leftover, "muster-system")
        fleet.violations.clear()
        await fleet.start()
        await fleet.ready()
        await fleet.until(lambda: server.doc(RESERVATIONS, "gone-1", "muster-system") is None)
        await settled(120)
        assert fleet.where("train") == ["c1"], "invariant 7: missing information deletes nothing"


@pytest.mark.parametrize("seed", range(6))
def test_random_faults(seed):
    """Lost, late, slow and refused requests, watches that break, kills: every job ends once, and nothing is left."""
    rng = Random(seed)
    rates = {
        Fault.REFUSED: 0.03, Fault.LOST: 0.04, Fault.LATE: 0.02, Fault.HANG: 0.01, Fault.SLOW: 0.02, Fault.BUSY: 0.01,
        Fault.ERROR: 0.01, Fault.ERROR_DONE: 0.01,
    }  # fmt: skip

    @virtual
    async def story():
        async with PlayedFleet(rng, {"c1": 4, "c2": 6}) as fleet:
            await fleet.start(rates=rates)
            fleet.policy()
            names = [f"j{i}" for i in range(8)]
            for name in names:
                fleet.submit(name, rng.randrange(0, 4), run_for=rng.uniform(5, 60))
                await settled(rng.uniform(0, 20))
                if rng.random() < 0.3:
                    await fleet.kill()
                    await settled(rng.uniform(0, 20))
                    await fleet.start(rates=rates)
            for faults in fleet.faults.values():
                faults.calm = True
            await fleet.until(lambda: all(fleet.state(name) == "Succeeded" for name in names), 3600)
            for name in names:
                fleet.delete(name)
            await fleet.until(lambda: all(fleet.job(name) is None for name in names), 3600)
            await fleet.until(lambda: fleet.left() == [], 600)

    story()
