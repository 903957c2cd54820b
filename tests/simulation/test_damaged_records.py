"""Records that somebody damaged or removed by hand: one job suffers at most, it never runs twice, the rest goes on."""

from typing import Any

import pytest

from dispatcher import attempts, hub_job_status, mirror
from dispatcher.steps import Step
from kube.api.api import BINDINGS, NAMESPACES, POD_GROUPS, PODS, PYTORCH_JOBS, RESERVATIONS
from kube.objects.binding import BindingSpec
from tests.simulation.apiserver_store import Doc
from tests.simulation.clock import settled, until, virtual
from tests.simulation.whole_hub import WholeHub, gone, job

NAME = "train-pytorchjob"


def two_members() -> WholeHub:
    world = WholeHub(members={"m1": (4, 1), "m2": (4, 1)})
    world.namespace("team", queued=False)
    return world


async def running(world: WholeHub, name: str = "train", *, run_for: float | None = None) -> Doc:
    """Submits a job of two pods; its binding's spec once it runs."""
    world.submit("team", name, pods=2, run_for=run_for)
    await until(lambda: world.phase("team", name) == "Running", 60)
    spec: Doc = (world.binding("team", name) or {})["spec"]
    return spec


def damage(world: WholeHub, **spec: object) -> None:
    world.hub.patch(BINDINGS, NAME, {"spec": spec}, "team")


def places(world: WholeHub, name: str = "train") -> list[str]:
    return [m for m, member in world.members.items() if member.server.doc(PYTORCH_JOBS, name, "team") is not None]


def lose_binding(world: WholeHub) -> None:
    """A finalizer holds it: somebody insists."""
    world.hub.patch(BINDINGS, NAME, {"metadata": {"finalizers": None}}, "team")
    world.hub.delete(BINDINGS, NAME, "team")


def nothing_left(world: WholeHub) -> bool:
    kinds = (PYTORCH_JOBS, PODS, POD_GROUPS, RESERVATIONS)
    return not any(member.server.docs(kind) for member in world.members.values() for kind in kinds)


async def alive(world: WholeHub) -> None:
    """Another job is still handled by the same process."""
    assert world.dispatcher is not None
    before = world.dispatcher
    await running(world, "other")
    assert world.dispatcher is before
    world.delete("team", "other")
    await gone(lambda: world.binding("team", "other"))


@virtual
async def test_a_binding_that_is_deleted_by_hand_stays_as_long_as_its_job():
    world = two_members()
    async with world.running():
        before = await running(world)
        world.hub.delete(BINDINGS, NAME, "team")
        await settled(60)
        assert (world.binding("team", "train") or {})["spec"] == before
        await world.restart()
        await settled(60)
        assert world.phase("team", "train") == "Running"
        world.delete("team", "train")
        await gone(lambda: world.binding("team", "train"))
        assert nothing_left(world)


@pytest.mark.parametrize("first", ["job", "binding"])
@virtual
async def test_a_namespace_that_goes_takes_its_jobs_out_of_the_members(first: str):
    """The namespace controller deletes all kinds in any order, and nothing new can be made there."""
    world = two_members()
    async with world.running():
        await running(world)
        steps = [lambda: world.delete("team", "train"), lambda: world.hub.delete(BINDINGS, NAME, "team")]
        for step in steps if first == "job" else reversed(steps):
            step()
            await settled(0.5)
        await gone(lambda: world.hub.doc(PYTORCH_JOBS, "train", "team"))
        await gone(lambda: world.binding("team", "train"))
        assert nothing_left(world)


@virtual
async def test_a_name_that_is_taken_in_every_member_is_tried_ever_less_and_the_user_is_told():
    world = two_members()
    for member in world.members.values():
        member.server.create(NAMESPACES, {"metadata": {"name": "team"}}, "")
        member.server.create(PYTORCH_JOBS, job("team", "train"), "team")
    async with world.running():
        world.submit("team", "train", pods=2)
        await settled(600)
        epochs = (world.binding("team", "train") or {})["spec"]["lastEpoch"]
        assert epochs <= 20, "pauses double"
        taken = "another PyTorchJob of this name is there, which muster did not make"
        assert world.message("team", "train") == f"m1: {taken}; m2: {taken}"
        assert places(world) == ["m1", "m2"], "and theirs are left alone"


@virtual
async def test_a_running_job_whose_binding_is_removed_is_found_again_and_does_not_run_twice():
    world = two_members()
    async with world.running():
        before = await running(world)
        lose_binding(world)
        await until(lambda: (world.binding("team", "train") or {}).get("spec", {}).get("attempt") is not None, 60)
        after = (world.binding("team", "train") or {})["spec"]
        assert (after["id"], after["attempt"]["cluster"], after["attempt"]["state"]) == (
            before["id"], before["attempt"]["cluster"], "Landed",
        )  # fmt: skip
        await settled(120)
        assert places(world) == [before["attempt"]["cluster"]]
        world.delete("team", "train")
        await gone(lambda: world.binding("team", "train"))
        await settled(60)
        assert nothing_left(world)


@virtual
async def test_a_finished_job_whose_binding_is_removed_does_not_run_again():
    world = two_members()
    async with world.running():
        before = await running(world, run_for=10.0)
        await until(lambda: world.phase("team", "train") == "Succeeded", 60)
        lose_binding(world)
        await until(lambda: world.phase("team", "train") == "Succeeded", 60)
        await settled(60)
        assert places(world) == [before["attempt"]["cluster"]]
        assert (world.binding("team", "train") or {})["spec"]["lastEpoch"] == 1


@virtual
async def test_a_job_made_from_the_yaml_of_another_gets_an_id_of_its_own():
    """`kubectl get -o yaml`, another namespace, `kubectl create`: annotation and finalizer come along."""
    world = two_members()
    world.namespace("lab", queued=False)
    async with world.running():
        first = await running(world)
        document = world.hub.existing(PYTORCH_JOBS, "train", "team")
        kept = {k: v for k, v in document["metadata"].items() if k in ("name", "annotations", "finalizers")}
        world.hub.create(PYTORCH_JOBS, {"metadata": kept, "spec": document["spec"]}, "lab")
        await until(lambda: world.phase("lab", "train") == "Running", 60)
        assert (world.binding("lab", "train") or {})["spec"]["id"] != first["id"]


@virtual
async def test_finished_without_a_result_while_the_copy_runs_is_put_right():
    world = two_members()
    async with world.running():
        attempt = (await running(world))["attempt"]
        damage(world, attempt=attempt | {"state": "Finished"})
        await until(lambda: (world.binding("team", "train") or {})["spec"]["attempt"]["state"] == "Landed", 60)
        await alive(world)
        assert world.phase("team", "train") == "Running"


@virtual
async def test_a_result_without_an_attempt_is_final():
    world = two_members()
    async with world.running():
        attempt = (await running(world))["attempt"]
        damage(world, attempt=None, result={"state": "Failed", "cluster": attempt["cluster"], "epoch": 1})
        await alive(world)
        await world.restart()
        await settled(60)
        assert world.phase("team", "train") == "Failed"
        assert (world.binding("team", "train") or {})["spec"]["lastEpoch"] == 1


@pytest.mark.parametrize("state", ["Landed", "Finished"])
@virtual
async def test_a_deletion_recorded_by_hand_is_carried_out(state: str):
    world = two_members()
    async with world.running():
        attempt = (await running(world))["attempt"]
        damage(world, attempt=attempt | {"state": state}, deleting=True)
        world.delete("team", "train")
        await gone(lambda: world.binding("team", "train"))
        assert places(world) == []
        await alive(world)


@virtual
async def test_a_bug_met_by_one_job_holds_up_no_other(monkeypatch: pytest.MonkeyPatch):
    right = attempts.next_step

    def stumbles(spec: BindingSpec | None, *rest: Any) -> Step:
        if spec is not None and spec.job.name == "train" and spec.attempt is not None:
            raise KeyError("a bug")
        return right(spec, *rest)

    world = two_members()
    async with world.running():
        monkeypatch.setattr(attempts, "next_step", stumbles)
        world.submit("team", "train", pods=2)
        await alive(world)
        assert world.phase("team", "train") != "Running"
        monkeypatch.setattr(attempts, "next_step", right)
        await until(lambda: world.phase("team", "train") == "Running", 600)


@virtual
async def test_a_status_that_cannot_be_told_holds_up_no_other(monkeypatch: pytest.MonkeyPatch):
    right = hub_job_status.wanted_status

    def stumbles(existing: Any, job: Any, problem: str, spec: BindingSpec, *rest: Any) -> Any:
        if spec.job.name == "train":
            raise KeyError("a bug")
        return right(existing, job, problem, spec, *rest)

    world = two_members()
    async with world.running():
        monkeypatch.setattr(mirror, "wanted_status", stumbles)
        world.submit("team", "train", pods=2)
        await alive(world)
        assert world.phase("team", "train") == ""
        monkeypatch.setattr(mirror, "wanted_status", right)
        await until(lambda: world.phase("team", "train") == "Running", 600)


@pytest.mark.parametrize("epoch", ["9" * 5000, "²", "-1", "9" * 19, ""])
@virtual
async def test_an_epoch_that_is_no_number_in_a_member_stops_nobody(epoch: str):
    """Members are trusted less than the hub: whoever edits annotations there must not end the dispatcher."""
    world = two_members()
    async with world.running():
        attempt = (await running(world))["attempt"]
        server = world.members[attempt["cluster"]].server
        server.patch(PYTORCH_JOBS, "train", {"metadata": {"annotations": {"muster.dev/epoch": epoch}}}, "team")
        await alive(world)
        await settled(60)
        assert len(places(world)) <= 1
