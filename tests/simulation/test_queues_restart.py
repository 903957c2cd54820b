"""A restart with a long queue: the same decisions as without it, and how long until they are made again."""

import time

import msgspec
import pytest

from dispatcher.intents import Surroundings, read
from dispatcher.policies import read_policy
from dispatcher.quota import charge_of
from dispatcher.quota_tree import read_tree
from kube.api.api import (
    BINDINGS,
    CONFIG_MAPS,
    NAMESPACES,
    PODS,
    POLICIES,
    PYTORCH_JOBS,
    QUOTA_TREES,
    RESERVATIONS,
)
from kube.objects.binding import Attempt, BindingSpec, JobRef, ResourceBinding
from kube.objects.meta import ObjectMeta
from tests.simulation.apiserver_store import Doc
from tests.simulation.clock import run_virtual, settled, until
from tests.simulation.member_stand_in import GPU, MemberStandIn
from tests.simulation.whole_hub import WholeHub, job, node

HUB_ID = "hub-restarted"
SIZES = 50


def many_jobs(queued: int, running: int) -> WholeHub:
    """A hub as a dispatcher has left it, written straight into the API servers: team A runs `running` jobs of one GPU,
    all that its quota has, and `queued` jobs of 2 to 51 GPUs wait; only the last of them asks for one."""
    world = WholeHub(members={"m1": (1, running + SIZES)})
    world.namespace("team-a")
    world.tree(node("root", node("a", namespaces=["team-a"]), min=running, max=running))
    world.hub.create(
        CONFIG_MAPS,
        {"metadata": {"name": "muster-hub"}, "data": {"hubID": HUB_ID, "incarnation": "1"}},
        "muster-system",
    )
    policy = read_policy(world.hub.docs(POLICIES)[0]).policy
    tree = read_tree(world.hub.docs(QUOTA_TREES)[0]).tree
    assert policy is not None
    assert tree is not None
    around = Surroundings(policies=[policy], tree=tree)
    member = world.members["m1"]
    member.server.create(NAMESPACES, {"metadata": {"name": "team-a"}}, "")
    cluster_uid = member.server.existing(NAMESPACES, "kube-system")["metadata"]["uid"]
    for number in range(running + queued):
        name = f"j{number:05}"
        runs, last = number < running, number == running + queued - 1
        doc = job("team-a", name, gpus=1 if runs or last else 2 + number % SIZES)
        doc["metadata"] |= {"annotations": {"muster.dev/id": name}, "finalizers": ["muster.dev/cleanup"]}
        stored: Doc = msgspec.json.decode(world.hub.create(PYTORCH_JOBS, doc, "team-a"))
        meta = msgspec.convert(stored["metadata"], ObjectMeta)
        reading = read(meta, stored, around)
        assert reading.intent is not None
        assert reading.ask is not None
        spec = BindingSpec(
            hub_id=HUB_ID,
            job_id=name,
            job=JobRef(api_version="kubeflow.org/v1", kind="PyTorchJob", name=name, uid=meta.uid),
            queued_at=f"2026-08-01T11:00:00.{number:06}Z",
            **msgspec.structs.asdict(reading.intent),
        )
        if runs:
            spec.attempt = Attempt(cluster="m1", cluster_uid=cluster_uid, epoch=1, state="Landed")
            spec.charge, spec.last_epoch = charge_of(reading.ask), 1
            put_running(member, name)
        binding = ResourceBinding(metadata=ObjectMeta(name=f"{name}-pytorchjob", namespace="team-a"), spec=spec)
        world.hub.create(BINDINGS, msgspec.json.decode(msgspec.json.encode(binding)), "team-a")
    return world


def put_running(member: MemberStandIn, name: str) -> None:
    notes = {"muster.dev/hub-id": HUB_ID, "muster.dev/id": name, "muster.dev/epoch": "1"}
    meta = {"labels": {"muster.dev/managed": "true"}, "annotations": notes}
    server = member.server
    spec = {
        "hubID": HUB_ID,
        "id": name,
        "epoch": 1,
        "jobNamespace": "team-a",
        "jobName": name,
        "state": "Dispatched",
        "roles": [],
        "minMember": 1,
    }
    server.create(RESERVATIONS, {"metadata": {"name": f"{name}-1", **meta}, "spec": spec}, "muster-system")
    server.patch(RESERVATIONS, f"{name}-1", {"status": {"state": "Landed"}}, "muster-system", "status")
    copy = job("team-a", name)
    copy["metadata"] |= meta
    server.create(PYTORCH_JOBS, copy, "team-a")
    running = {"type": "Running", "status": "True", "reason": "PyTorchJobRunning", "message": "runs"}
    server.patch(PYTORCH_JOBS, name, {"status": {"conditions": [running]}}, "team-a", "status")
    pod = {"metadata": {"name": f"{name}-master-0", **meta}, "spec": {"nodeName": "n0", "containers": []}}
    server.create(PODS, pod, "team-a")
    server.patch(PODS, f"{name}-master-0", {"status": {"phase": "Running"}}, "team-a", "status")
    member.taken[f"{name}-1"] = [1]


def restart(queued: int, running: int) -> None:
    async def story() -> None:
        world = many_jobs(queued, running)
        began = time.perf_counter()
        async with world.running():
            await world.ready()
            await until(lambda: len(world.admission.pending) == queued, 600, step=0.1)
            took = time.perf_counter() - began
            print(f"\n  {queued} queued and {running} running jobs: ready after {took:.1f} s (goal 30 s)")
            ledger = world.admission.ledger
            assert len(ledger.entries()) == running
            assert ledger.used(("root", "a"))[GPU] == running
            await settled(2)
            created = [a for a in world.members["m1"].server.audit if a.request.verb in ("create", "delete")]
            assert {a.request.resource for a in created} <= {"leases"}, "nothing is dispatched or removed"
            positions = world.admission.pending.positions(("root", "a"))
            assert [w.name for w in positions] == [f"j{n:05}" for n in range(running, running + queued)]
            # Room for one GPU: the one job that asks for no more is found behind all that do.
            world.delete("team-a", "j00000")
            last = f"j{running + queued - 1:05}"

            def placed() -> bool:
                spec = (world.binding("team-a", last) or {})["spec"]
                return (spec.get("attempt") or {}).get("state") in ("Scheduled", "Landed")

            await until(placed, 300, step=0.1)
            assert ledger.used(("root", "a"))[GPU] == running

    run_virtual(story())


def test_a_restart_with_many_jobs_decides_as_before():
    restart(queued=300, running=30)


@pytest.mark.long
def test_a_restart_with_fifty_thousand_queued_and_five_thousand_running_jobs():
    restart(queued=50_000, running=5_000)
