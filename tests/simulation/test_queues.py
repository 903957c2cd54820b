"""Queues of the whole dispatcher, in virtual time: who gets the room, who gives it back, who never starves."""

from functools import partial
from random import Random
from typing import Any

import pytest

from dispatcher.queue_names import queue_name
from kube.api.api import BINDINGS, EVENTS, PRIORITY_CLASSES, PYTORCH_JOBS, QUEUE_UNITS, QUEUES, QUOTA_TREES
from tests.simulation.apiserver_store import Change, Doc
from tests.simulation.clock import run_virtual, settled, until, virtual
from tests.simulation.member_stand_in import GPU
from tests.simulation.whole_hub import WholeHub, node


def teams(a: int = 4, b: int = 4, **more: Any) -> Doc:
    leaves = [
        node("a", min=a, namespaces=["team-a"], **more),
        node("b", min=b, namespaces=["team-b"], **more),
    ]
    return node("root", *leaves, min=a + b, max=a + b)


def two_teams(members: dict[str, tuple[int, int]] | None = None, **options: Any) -> WholeHub:
    """Eight GPUs, four guaranteed to each team; the tree says what is really there."""
    world = WholeHub(members=members or {"m1": (8, 1)}, **options)
    world.namespace("team-a")
    world.namespace("team-b")
    world.tree(teams())
    return world


async def team_a_has_it_all(world: WholeHub) -> None:
    for n in range(4):
        world.submit("team-a", f"a{n}", pods=2)
        await until(partial(world.is_in, "Running", "team-a", f"a{n}"), 60)


def evictions(world: WholeHub) -> list[str]:
    """Names of the jobs that were taken back, as their events tell."""
    return [doc["involvedObject"]["name"] for doc in world.hub.docs(EVENTS) if doc.get("reason") == "Evicted"]


# Reclaim ----------------------------------------------------------------------------------------------------------


@virtual
async def test_borrowed_quota_is_given_back_whole_and_the_victim_runs_later():
    world = two_teams()
    async with world.running():
        await team_a_has_it_all(world)
        asked_at = (world.binding("team-a", "a3") or {})["spec"]["queuedAt"]
        world.submit("team-b", "b0", pods=2, run_for=60)
        await until(lambda: world.phase("team-b", "b0") == "Running", 60)
        assert world.in_phase("Running") == ["a0", "a1", "a2", "b0"]

        def shown() -> list[tuple[str, str]]:
            tree = world.hub.existing(QUOTA_TREES, "elasticquotatree", "kube-system")
            nodes = tree.get("status", {}).get("root", {}).get("children", [])
            return [(each["used"].get(GPU, "0"), each["request"].get(GPU, "0")) for each in nodes]

        await until(lambda: shown() == [("6", "8"), ("2", "2")], 20)
        assert world.phase("team-a", "a3") == "Queued"
        assert "queue root" in world.message("team-a", "a3")
        assert world.charged()["root"] == 8
        await until(lambda: world.phase("team-b", "b0") == "Succeeded", 120)
        await until(lambda: world.phase("team-a", "a3") == "Running", 60)
        assert (world.binding("team-a", "a3") or {})["spec"]["queuedAt"] == asked_at
        assert evictions(world) == ["a3"]
        for doc in world.hub.docs(PYTORCH_JOBS):
            world.delete(doc["metadata"]["namespace"], doc["metadata"]["name"])
        await until(lambda: shown() == [("0", "0"), ("0", "0")], 60)
        root = world.hub.existing(QUOTA_TREES, "elasticquotatree", "kube-system")["status"]["root"]
        assert (root["used"], root["request"]) == ({}, {})


@virtual
async def test_reclaim_can_be_switched_off():
    world = two_teams(reclaim=False)
    async with world.running():
        await team_a_has_it_all(world)
        world.submit("team-b", "b0", pods=2)
        await settled(900)
        assert world.phase("team-b", "b0") == "Queued"
        assert world.in_phase("Running") == ["a0", "a1", "a2", "a3"]


@virtual
async def test_f12_two_hundred_rounds_of_reclaim_without_a_loop():
    """Each round team B asks for its own: exactly one of A's jobs goes, B's job lands, ends, and A's is back. Were a
    victim able to take back, or a claimant to lose what was freed for it, there would be more evictions than rounds."""
    rounds = 200
    world = two_teams()
    taken_back: list[str] = []

    def watch(change: Change) -> None:
        doc = change.last.doc
        attempt = doc.get("spec", {}).get("attempt") or {}
        if change.kind[1] == "resourcebindings" and attempt.get("state") == "Evicting":
            told = f"{doc['spec']['id']}-{attempt['epoch']}"
            if not taken_back or taken_back[-1] != told:
                taken_back.append(told)

    world.hub.observe(watch)
    async with world.running():
        await team_a_has_it_all(world)
        for n in range(rounds):
            world.submit("team-b", f"b{n}", pods=2, run_for=5)
            await until(partial(world.is_in, "Succeeded", "team-b", f"b{n}"), 120, step=0.1)
            await until(lambda: len(world.in_phase("Running", "team-a")) == 4, 120, step=0.1)
            world.delete("team-b", f"b{n}")
        assert len(taken_back) == rounds
        assert len(world.admission.preemptions) == 0
        assert not world.admission.ledger.holds()


@virtual
async def test_f12_two_claimants_of_one_team_are_served_at_once_and_no_more_than_its_guarantee():
    world = two_teams()
    async with world.running():
        await team_a_has_it_all(world)
        for n in range(3):
            world.submit("team-b", f"b{n}", pods=2)
        await until(lambda: len(world.in_phase("Running", "team-b")) == 2, 60)
        await settled(900)
        assert world.in_phase("Running") == ["a0", "a1", "b0", "b1"]
        assert len(world.in_phase("Queued")) == 3


@virtual
async def test_f12_what_no_member_can_hold_takes_back_less_and_less_often():
    """B's job needs a node of two GPUs, and there are none: what is freed for it is of no use to it."""
    world = two_teams(reclaim_hold_seconds=60.0, reclaim_rest_seconds=60.0)
    async with world.running():
        await team_a_has_it_all(world)
        world.submit("team-b", "b0", pods=1, gpus=2)
        await settled(3600)
        epochs = [(world.binding("team-a", f"a{n}") or {})["spec"]["lastEpoch"] for n in range(4)]
        # It holds 60 s and rests 60, 120, 240, 480, 960, 1920 s: six times within the hour.
        assert 4 < sum(epochs) <= 4 + 6
        await until(lambda: world.in_phase("Running") == ["a0", "a1", "a2", "a3"], 120)


@virtual
async def test_lowered_limits_evict_only_where_that_is_wanted():
    for wanted in (False, True):
        world = two_teams(evict_over_max=wanted, reclaim=False)
        async with world.running():
            await team_a_has_it_all(world)
            world.tree(node("root", *teams(2, 2)["children"], min=4, max=4))
            await settled(60)
            assert len(world.in_phase("Running")) == (2 if wanted else 4)
            assert len(world.in_phase("Queued")) == (2 if wanted else 0)
            world.submit("team-b", "b0")
            await settled(60)
            assert world.phase("team-b", "b0") == "Queued"


# Starvation -------------------------------------------------------------------------------------------------------


@virtual
async def test_f11_a_big_gang_lands_against_an_endless_stream_of_small_jobs():
    """Eight nodes, always seven or eight of them busy with jobs of 20 s. The gang of eight may claim after 60 s, and
    the nodes it claims are free when their jobs end."""
    world = WholeHub(members={"m1": (8, 1)}, claim_after_seconds=60.0)
    world.namespace("team-a")
    world.tree(node("root", node("a", namespaces=["team-a"]), min=100, max=100))
    async with world.running():
        number = 0
        ended: set[str] = set()

        def feed() -> None:
            nonlocal number
            for name in world.in_phase("Succeeded"):
                if name != "big":
                    world.delete("team-a", name)
                    ended.add(name)
            while number - len(ended) < 11:
                world.submit("team-a", f"s{number}", run_for=20)
                number += 1

        for _ in range(12):
            feed()
            await settled(2)
        world.submit("team-a", "big", pods=8, run_for=30)
        for _ in range(60):
            feed()
            await settled(2)
            if world.phase("team-a", "big") == "Running":
                break
        else:
            pytest.fail(f"the gang starves: {world.message('team-a', 'big')}")
        assert number > 30
        await until(lambda: world.phase("team-a", "big") == "Succeeded", 60)
        feed()
        before = number
        await settled(60)
        feed()
        assert number > before + 8  # small jobs go on


@virtual
async def test_a_claim_that_comes_to_nothing_ends_and_the_job_waits_again():
    world = WholeHub(members={"m1": (8, 1)}, claim_after_seconds=30.0, claim_seconds=60.0)
    world.namespace("team-a")
    world.tree(node("root", node("a", namespaces=["team-a"]), min=100, max=100))
    async with world.running():
        world.submit("team-a", "endless")
        await until(lambda: world.phase("team-a", "endless") == "Running")
        world.submit("team-a", "big", pods=8)
        await until(lambda: world.phase("team-a", "big") == "Reserving", 60)
        assert world.charged()["root"] == 9
        await until(lambda: world.phase("team-a", "big") == "Queued", 90)
        assert world.charged()["root"] == 1
        world.submit("team-a", "small")
        await until(lambda: world.phase("team-a", "small") == "Running", 30)
        assert not world.admission.ledger.holds()


@virtual
async def test_what_could_never_fit_claims_nothing_and_keeps_nobody_from_claiming():
    world = WholeHub(members={"m1": (4, 1)}, claim_after_seconds=30.0)
    world.namespace("team-a")
    world.tree(node("root", node("a", namespaces=["team-a"]), min=100, max=100))
    async with world.running():
        world.submit("team-a", "endless", run_for=120)
        await until(lambda: world.phase("team-a", "endless") == "Running")
        world.submit("team-a", "huge", pods=9)
        await settled(1)
        world.submit("team-a", "big", pods=4)
        await until(lambda: world.phase("team-a", "big") == "Reserving", 60)
        await until(lambda: world.phase("team-a", "big") == "Running", 120)
        assert world.phase("team-a", "huge") == "Queued"


# The user's own switches ------------------------------------------------------------------------------------------


@virtual
async def test_suspend_and_resume_in_every_phase_keeps_the_age():
    world = two_teams()
    async with world.running():
        await team_a_has_it_all(world)
        age = (world.binding("team-a", "a1") or {})["spec"]["queuedAt"]
        world.edit("team-a", "a1", {"spec": {"runPolicy": {"suspend": True}}})
        await until(lambda: world.phase("team-a", "a1") == "Held", 60)
        assert world.charged()["root"] == 6
        world.submit("team-a", "later", pods=2)
        await until(lambda: world.phase("team-a", "later") == "Running", 60)

        world.edit("team-a", "a1", {"spec": {"runPolicy": {"suspend": False}}})  # K12
        await until(lambda: world.phase("team-a", "a1") == "Queued", 60)
        world.edit("team-a", "a1", {"spec": {"runPolicy": {"suspend": True}}})
        await until(lambda: world.phase("team-a", "a1") == "Held", 60)
        world.submit("team-a", "younger", pods=2)
        world.edit("team-a", "a1", {"spec": {"runPolicy": {"suspend": None}}})
        await until(lambda: world.phase("team-a", "a1") == "Queued", 60)
        world.delete("team-a", "later")
        await until(lambda: world.phase("team-a", "a1") == "Running", 60)
        assert world.phase("team-a", "younger") == "Queued"
        assert (world.binding("team-a", "a1") or {})["spec"]["queuedAt"] == age


@virtual
async def test_k18_a_priority_class_that_changes_re_orders_the_queue():
    world = two_teams(reclaim=False)
    world.hub.create(PRIORITY_CLASSES, {"metadata": {"name": "urgent"}, "value": 0}, "")
    for member in world.members.values():
        member.server.create(PRIORITY_CLASSES, {"metadata": {"name": "urgent"}, "value": 10}, "")
    async with world.running():
        await team_a_has_it_all(world)
        world.submit("team-a", "older", pods=2)
        await settled(2)
        world.submit("team-a", "younger", pods=2, priority_class="urgent")
        await settled(2)
        assert [w.name for w in world.admission.pending.positions(("root", "a"))] == ["older", "younger"]
        world.hub.delete(PRIORITY_CLASSES, "urgent", "")
        world.hub.create(PRIORITY_CLASSES, {"metadata": {"name": "urgent"}, "value": 10}, "")
        await until(
            lambda: [w.name for w in world.admission.pending.positions(("root", "a"))] == ["younger", "older"], 10
        )
        world.delete("team-a", "a0")
        await until(lambda: world.phase("team-a", "younger") == "Running", 60)
        assert world.phase("team-a", "older") == "Queued"


@virtual
async def test_k19_deletion_in_every_phase_leaves_nothing():
    """Deleted at each moment of its life, from 0 to 6 s after it was made: quota, bindings, reservations, copies and
    pods are all gone, and the next job lands."""
    world = two_teams()
    async with world.running():
        await world.ready()
        for tenth in range(0, 60, 3):
            world.submit("team-a", "j", pods=2, run_for=2)
            await settled(tenth / 10)
            if world.hub.doc(PYTORCH_JOBS, "j", "team-a") is not None:
                world.delete("team-a", "j")
            await until(lambda: world.hub.doc(PYTORCH_JOBS, "j", "team-a") is None, 60)
            await until(lambda: world.binding("team-a", "j") is None, 60)
            assert world.charged() == {}
            await until(lambda: not world.members["m1"].taken, 10)
        assert not world.admission.ledger.entries()


# The tree ---------------------------------------------------------------------------------------------------------


@virtual
async def test_k8_a_namespace_outside_the_tree_is_held_with_the_reason_and_released_by_the_tree():
    world = two_teams()
    world.namespace("team-c")
    async with world.running():
        world.submit("team-c", "c0")
        await until(lambda: world.phase("team-c", "c0") == "Held", 30)
        assert "namespace 'team-c' is on no leaf of the quota tree" in world.message("team-c", "c0")
        tree = teams()
        tree["children"][1]["namespaces"].append("team-c")
        world.tree(tree)
        await until(lambda: world.phase("team-c", "c0") == "Running", 30)


@virtual
async def test_k4_a_bad_tree_changes_nothing_and_says_what_is_wrong():
    world = two_teams()
    async with world.running():
        await team_a_has_it_all(world)
        before = world.admission.ledger.tree
        world.tree(teams(a=4, b=4) | {"min": {"nvidia.com/gpu": 6}})
        await until(lambda: bool(world.events("InvalidQuotaTree")), 30)
        assert "less than its children's 8 together" in world.events("InvalidQuotaTree")[0]["message"]
        assert world.admission.ledger.tree == before
        world.delete("team-a", "a0")
        world.submit("team-b", "b0", pods=2)
        await until(lambda: world.phase("team-b", "b0") == "Running", 60)


@virtual
async def test_k4_the_last_good_tree_stays_in_force_over_a_restart_with_its_queues_and_their_settings():
    world = two_teams()
    root, leaf = queue_name(("root",)), queue_name(("root", "a"))
    async with world.running():
        await team_a_has_it_all(world)
        await until(lambda: world.hub.doc(QUEUES, leaf, "kube-queue") is not None)
        world.hub.patch(QUEUES, leaf, {"spec": {"queuePolicy": "Block"}}, "kube-queue")
        before = world.admission.ledger.tree
        world.tree(teams(a=4, b=4) | {"min": {"nvidia.com/gpu": 6}})
        await settled(5)
        await world.restart()
        await settled(30)
        assert world.admission.ledger.tree.nodes == before.nodes
        assert world.admission.ledger.used(("root", "a"))["nvidia.com/gpu"] == 8
        assert world.hub.existing(QUEUES, leaf, "kube-queue")["spec"] == {"queuePolicy": "Block"}
        assert world.hub.doc(QUEUES, root, "kube-queue") is not None
        world.submit("team-b", "b0", pods=2)
        await until(lambda: world.phase("team-b", "b0") == "Running", 60)


@virtual
async def test_k5_k6_a_leaf_that_moves_or_goes_keeps_its_jobs_charged_until_they_end():
    world = two_teams()
    async with world.running():
        world.submit("team-a", "a0", pods=2)
        await until(lambda: world.phase("team-a", "a0") == "Running", 30)
        # Team A's leaf goes, its namespace moves to B's.
        world.tree(node("root", node("b", min=8, max=8, namespaces=["team-a", "team-b"]), min=8, max=8))
        await settled(5)
        assert world.admission.ledger.used(("root",))["nvidia.com/gpu"] == 2
        assert world.admission.ledger.used(("root", "b")) == {}
        world.submit("team-a", "a1", pods=2)
        await until(lambda: world.phase("team-a", "a1") == "Running", 30)
        assert world.admission.ledger.used(("root", "b"))["nvidia.com/gpu"] == 2
        world.delete("team-a", "a0")
        world.delete("team-a", "a1")
        await until(lambda: not world.hub.docs(BINDINGS), 60)
        await settled(1)
        assert world.admission.ledger.used(("root",)) == {}
        assert world.admission.ledger.used(("root", "b")) == {}


# Holding ----------------------------------------------------------------------------------------------------------


@virtual
async def test_f8_no_event_dispatches_a_held_job():
    """The policy suspends scheduling and max-jobs is 0: nothing reaches a member, whatever is touched."""
    world = WholeHub(members={"m1": (8, 1)})
    world.namespace("team-a")
    world.tree(node("root", node("a", namespaces=["team-a"], jobs=0), min=8, max=8))
    async with world.running():
        world.submit("team-a", "j")
        await until(lambda: world.phase("team-a", "j") == "Queued", 30)
        for n in range(5):
            world.edit("team-a", "j", {"metadata": {"labels": {"touched": str(n)}}})
            world.hub.patch(BINDINGS, "j-pytorchjob", {"metadata": {"labels": {"touched": str(n)}}}, "team-a")
            await settled(2)
        await world.restart()
        await settled(30)
        assert "max-jobs 0 of 0 used" in world.message("team-a", "j")
        asked = [each.request.resource for each in world.members["m1"].server.audit if each.request.verb == "create"]
        assert "gangreservations" not in asked


@virtual
async def test_admission_checks_of_others_are_waited_for_with_quota_and_room_held():
    """The queue asks for a check: nothing is dispatched before somebody says Ready; Rejected gives all back; the job is
    tried again, and the check is asked anew."""
    world = two_teams()
    queue, unit = queue_name(("root", "a")), "a0-pytorchjob-rb-qu"
    async with world.running():
        await until(lambda: world.hub.doc(QUEUES, queue, "kube-queue") is not None)
        world.hub.patch(QUEUES, queue, {"spec": {"admissionChecks": [{"name": "budget"}]}}, "kube-queue")
        await settled(1)
        world.submit("team-a", "a0", pods=2)

        def states() -> list[str]:
            status = (world.hub.doc(QUEUE_UNITS, unit, "team-a") or {}).get("status", {})
            return [check["state"] for check in status.get("admissionChecks", [])]

        def answer(state: str) -> None:
            status = {"admissionChecks": [{"name": "budget", "state": state}]}
            world.hub.patch(QUEUE_UNITS, unit, {"status": status}, "team-a", "status")

        await until(lambda: states() == ["Pending"], 30)
        await settled(200)
        assert world.phase("team-a", "a0") == "Reserving"
        assert world.charged()["root"] == 2
        assert not world.members["m1"].server.docs(PYTORCH_JOBS)
        answer("Rejected")
        await until(lambda: world.charged() == {}, 10)
        await until(lambda: "admission check failed: budget: Rejected" in world.message("team-a", "a0"), 10)
        await until(lambda: world.phase("team-a", "a0") == "Reserving" and states() == ["Pending"], 60)
        answer("Ready")
        await until(lambda: world.phase("team-a", "a0") == "Running", 30)


@virtual
async def test_a_job_waits_in_the_hand_made_queue_it_names():
    """The queue blocks: its first job is too big, so the second waits behind it though its quota has room."""
    world = two_teams(reclaim=False)
    annotations = {"kube-queue/queue-name": "research"}
    async with world.running():
        world.submit("team-a", "big", pods=9, annotations=annotations)
        await until(lambda: world.phase("team-a", "big") == "Held", 30)
        assert "there is no queue kube-queue/research" in world.message("team-a", "big")
        queue = {
            "metadata": {"name": "research", "annotations": {"kube-queue/available-quota": "a"}},
            "spec": {"queuePolicy": "Block"},
        }
        world.hub.create(QUEUES, queue, "kube-queue")
        await until(lambda: world.phase("team-a", "big") == "Queued", 30)
        await settled(1)  # ages count in seconds
        world.submit("team-a", "behind", annotations=annotations)
        world.submit("team-a", "beside")
        await until(lambda: world.phase("team-a", "beside") == "Running", 30)
        await until(lambda: "behind team-a/big" in world.message("team-a", "behind"), 30)
        unit = world.hub.existing(QUEUE_UNITS, "behind-pytorchjob-rb-qu", "team-a")
        assert unit["spec"]["queue"] == "research"

        def items() -> int:
            status = world.hub.existing(QUEUES, "research", "kube-queue").get("status", {})
            return len(status.get("queueItemDetails", {}).get("active", []))

        await until(lambda: items() == 2, 60)
        assert world.hub.existing(QUEUES, "research", "kube-queue")["spec"] == {"queuePolicy": "Block"}
        world.delete("team-a", "big")
        await until(lambda: world.phase("team-a", "behind") == "Running", 30)


@virtual
async def test_f14_quota_is_charged_until_the_pods_are_gone():
    """B's job waits for quota while the victim's pods still end: the member's stand-in takes a second for that."""
    world = two_teams()
    at_most = 0

    def watch(_: Change) -> None:
        nonlocal at_most
        at_most = max(at_most, world.charged().get("root", 0))

    world.hub.observe(watch)
    async with world.running():
        await team_a_has_it_all(world)
        world.submit("team-b", "b0", pods=4)
        await until(lambda: world.phase("team-b", "b0") == "Running", 60)
        assert at_most == 8


# Restart ----------------------------------------------------------------------------------------------------------


@virtual
async def test_f15_a_restart_changes_nothing():
    """Killed and started again at different moments: what lands where and in which order is the same."""

    async def order(restart_at: float | None) -> list[str]:
        world = two_teams()
        landed: list[str] = []

        def watch(change: Change) -> None:
            spec = change.last.doc.get("spec", {})
            if change.kind[1] == "resourcebindings" and (spec.get("attempt") or {}).get("state") == "Landed":
                name = spec["job"]["name"]
                if name not in landed:
                    landed.append(name)

        world.hub.observe(watch)
        async with world.running():
            await world.ready()
            for n in range(12):
                world.submit("team-a", f"j{n:02}", pods=2, run_for=10)
                await settled(0.05)
            if restart_at is not None:
                await settled(restart_at)
                await world.restart()
            await until(lambda: len(world.in_phase("Succeeded")) == 12, 600)
            assert world.charged() == {}
        return landed

    expected = await order(None)
    assert sorted(expected[:4]) == ["j00", "j01", "j02", "j03"]
    for at in (0.0, 3.0, 11.0):
        assert [sorted(wave) for wave in waves(await order(at))] == [sorted(wave) for wave in waves(expected)]


def waves(landed: list[str]) -> list[list[str]]:
    return [landed[n : n + 4] for n in range(0, len(landed), 4)]


@virtual
async def test_f15_a_queue_that_blocks_does_so_after_a_restart_too():
    world = two_teams(reclaim=False)
    async with world.running():
        await until(lambda: world.hub.doc(QUEUES, queue_name(("root", "a")), "kube-queue") is not None)
        world.hub.patch(QUEUES, queue_name(("root", "a")), {"spec": {"queuePolicy": "Block"}}, "kube-queue")
        await settled(1)
        world.submit("team-a", "big", pods=9)
        await settled(2)
        world.submit("team-a", "small")
        await settled(5)
        for _ in range(3):
            await world.restart()
            await settled(5)
        assert world.phase("team-a", "small") == "Queued"


# Streams ----------------------------------------------------------------------------------------------------------


def random_tree(rng: Random) -> Doc:
    """Two levels over the namespaces team-a to team-d, of 12 GPUs in all; always valid."""
    mins = [rng.randint(0, 3) for _ in range(4)]
    leaves = [
        node(name, min=least, max=rng.randint(max(least, 2), 12), namespaces=[f"team-{name}"])
        for name, least in zip("abcd", mins, strict=True)
    ]
    if rng.random() < 0.5:
        left = node("left", *leaves[:2], min=sum(mins[:2]), max=rng.randint(max(4, sum(mins[:2])), 12))
        return node("root", left, *leaves[2:], min=12, max=12)
    return node("root", *leaves, min=12, max=12)


def stream(seed: int, steps: int) -> None:
    rng = Random(seed)

    async def story() -> None:
        world = WholeHub(members={"m1": (6, 2), "m2": (3, 4)}, seed=seed, claim_after_seconds=60.0)
        limits: dict[str, int] = {}
        grew: list[str] = []
        used_before: dict[str, int] = {}

        def watch(change: Change) -> None:
            """Invariant 4 after every write of a binding, from the records alone: use grows only within every max."""
            nonlocal used_before
            if change.kind[1] != "resourcebindings":
                return
            used = world.charged()
            for path, amount in used.items():
                if amount > used_before.get(path, 0) and amount > limits.get(path, 1_000_000):
                    grew.append(f"{path}: {amount} of {limits[path]}")
            used_before = used

        world.hub.observe(watch)
        for name in "abcd":
            world.namespace(f"team-{name}")

        def put_tree() -> None:
            tree = random_tree(rng)
            world.tree(tree)
            limits.clear()
            for path, doc in nodes(tree):
                limits[path] = doc["max"]["nvidia.com/gpu"]

        put_tree()
        number = 0
        async with world.running():
            await world.ready()
            for _ in range(steps):
                team = f"team-{rng.choice('abcd')}"
                names = [doc["metadata"]["name"] for doc in world.hub.docs(PYTORCH_JOBS, team)]
                match rng.choice(["submit"] * 6 + ["delete", "suspend", "tree", "restart", "wait"]):
                    case "submit":
                        number += 1
                        world.submit(
                            team, f"j{number}", pods=rng.randint(1, 4), gpus=rng.randint(1, 2),
                            run_for=rng.choice([5.0, 30.0, 120.0]),
                        )  # fmt: skip
                    case "delete" if names:
                        world.delete(team, rng.choice(names))
                    case "suspend" if names:
                        suspend = rng.choice([True, False])
                        world.edit(team, rng.choice(names), {"spec": {"runPolicy": {"suspend": suspend}}})
                    case "tree":
                        # Limits are compared with what the dispatcher knew when it decided: let it settle first.
                        await settled(3)
                        put_tree()
                        await settled(3)
                    case "restart":
                        await world.restart()
                await settled(rng.choice([0.02, 0.3, 2.0, 10.0]))
                recomputed(world)
            assert grew == []
            for doc in world.hub.docs(PYTORCH_JOBS):
                meta = doc["metadata"]
                world.edit(meta["namespace"], meta["name"], {"spec": {"runPolicy": {"suspend": False}}})
            world.tree(node("root", node("all", namespaces=[f"team-{n}" for n in "abcd"]), min=12, max=12))
            await until(lambda: len(world.in_phase("Succeeded")) == len(world.hub.docs(PYTORCH_JOBS)), 20_000, step=1.0)
            assert world.charged() == {}
            assert world.admission.ledger.used(("root",)) == {}
            assert len(world.admission.preemptions) == 0
            assert not world.admission.ledger.holds()

    run_virtual(story(), rng=Random(seed))


def nodes(root: Doc, above: str = "") -> list[tuple[str, Doc]]:
    path = f"{above}/{root['name']}" if above else root["name"]
    return [(path, root), *(each for child in root.get("children", ()) for each in nodes(child, path))]


def recomputed(world: WholeHub) -> None:
    """Use of every node is the sum of the entries below it, and never negative."""
    ledger = world.admission.ledger
    for path in ledger.tree.nodes:
        total: dict[str, int] = {}
        for entry in ledger.entries().values():
            if entry.home[: len(path)] == path:
                for resource, units in entry.amounts.items():
                    total[resource] = total.get(resource, 0) + units
        assert ledger.used(path) == {resource: units for resource, units in total.items() if units}


@pytest.mark.parametrize("seed", range(2))
def test_random_streams_with_tree_edits_and_restarts_keep_invariant_4(seed):
    stream(seed, steps=40)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 112))
def test_long_random_streams_with_tree_edits_and_restarts_keep_invariant_4(seed):
    stream(seed, steps=100)
