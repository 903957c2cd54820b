"""The stand-in operator against a simulated API server, in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from hack.operator.controller import Operator
from hack.operator.writer import SERVICES, Writer
from kube.api.api import PODS, PYTORCH_JOBS
from tests.simulation.apiserver import ALL_RESOURCES, ApiServer
from tests.simulation.apiserver_client import SimulatedApi
from tests.simulation.apiserver_controllers import Controllers
from tests.simulation.clock import VirtualClock, settled, until, virtual

ROLE = {"restartPolicy": "OnFailure", "template": {"spec": {"containers": [{"name": "pytorch", "image": "i"}]}}}
PODS_OF_JOB = ["job-master-0", "job-worker-0", "job-worker-1", "job-worker-2"]


class Member:
    def __init__(self, *, pod_delay: float = 0.0) -> None:
        self.clock = VirtualClock()
        self.server = ApiServer("member", clock=self.clock, served=(*ALL_RESOURCES, SERVICES))
        self.api = SimulatedApi(self.server)
        writer = Writer(self.api, self.clock, pod_delay=pod_delay)
        self.operator = Operator(self.api, self.clock, writer, Random(1), dialect="training-operator")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with Controllers(self.server).running():
            task = asyncio.ensure_future(self.operator.run())
            try:
                await until(lambda: self.operator.synced)
                yield
            finally:
                task.cancel()
                await asyncio.wait([task])

    def post(self, workers: int = 3, **policy: Any) -> None:
        roles = {"Master": ROLE | {"replicas": 1}, "Worker": ROLE | {"replicas": workers}}
        job = {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": "job", "namespace": "default"},
            "spec": {"runPolicy": policy, "pytorchReplicaSpecs": roles},
        }
        self.server.create(PYTORCH_JOBS, job, "default")

    @property
    def pods(self) -> list[str]:
        return sorted(doc["metadata"]["name"] for doc in self.server.docs(PODS))

    @property
    def state(self) -> str:
        job = self.server.doc(PYTORCH_JOBS, "job", "default") or {}
        conditions = job.get("status", {}).get("conditions") or [{"type": ""}]
        return str(conditions[-1]["type"])

    def set_phase(self, name: str, phase: str) -> None:
        self.server.patch(PODS, name, {"status": {"phase": phase}}, "default", "status")


@virtual
async def test_a_posted_job_gets_its_pods_and_services_once() -> None:
    member = Member()
    async with member.running():
        member.post()
        await until(lambda: member.state == "Created")
        await settled(30)
        assert member.pods == PODS_OF_JOB
        assert len(member.server.docs(SERVICES)) == 4
        created = [each for each in member.server.audit if each.request[1:4] == ("create", "", "pods")]
        assert len(created) == 4


@virtual
async def test_status_follows_the_pods() -> None:
    member = Member()
    async with member.running():
        member.post()
        await until(lambda: member.pods == PODS_OF_JOB)
        for name in PODS_OF_JOB:
            member.set_phase(name, "Running")
        await until(lambda: member.state == "Running")
        member.set_phase("job-master-0", "Succeeded")
        await until(lambda: member.state == "Succeeded")


@virtual
async def test_a_pod_that_is_deleted_comes_back() -> None:
    member = Member()
    async with member.running():
        member.post()
        await until(lambda: member.pods == PODS_OF_JOB)
        before = member.server.doc(PODS, "job-worker-1", "default")
        assert before is not None
        member.server.delete(PODS, "job-worker-1", "default")

        def is_new() -> bool:
            now = member.server.doc(PODS, "job-worker-1", "default")
            return now is not None and now["metadata"]["uid"] != before["metadata"]["uid"]

        await until(is_new)


@virtual
async def test_pods_come_one_by_one_and_stop_when_the_job_goes() -> None:
    member = Member(pod_delay=10.0)
    async with member.running():
        member.post()
        await until(lambda: len(member.pods) == 1)
        assert 9.0 < await until(lambda: len(member.pods) == 2) < 11.0
        member.server.delete(PYTORCH_JOBS, "job", "default")
        await settled(60)
        assert member.pods == []
        assert member.operator._jobs == {}


@virtual
async def test_a_job_made_again_under_its_name_waits_until_the_old_pods_are_gone() -> None:
    member = Member()
    async with member.running():
        member.post()
        await until(lambda: member.pods == PODS_OF_JOB)
        member.server.delete(PYTORCH_JOBS, "job", "default")
        member.post()
        job = member.server.doc(PYTORCH_JOBS, "job", "default")
        assert job is not None

        def all_are_its_own() -> bool:
            owners = {doc["metadata"]["ownerReferences"][0]["uid"] for doc in member.server.docs(PODS)}
            return owners == {job["metadata"]["uid"]} and member.pods == PODS_OF_JOB

        await until(all_are_its_own)
        await until(lambda: member.state == "Created")


@virtual
async def test_the_ttl_takes_the_job_away() -> None:
    member = Member()
    async with member.running():
        member.post(ttlSecondsAfterFinished=100)
        await until(lambda: member.pods == PODS_OF_JOB)
        member.set_phase("job-master-0", "Succeeded")
        await until(lambda: member.state == "Succeeded")
        waited = await until(lambda: member.server.doc(PYTORCH_JOBS, "job", "default") is None)
        assert 99.0 < waited < 102.0
        await until(lambda: member.operator._jobs == {})


@virtual
async def test_an_api_server_that_comes_back_finds_the_work_going_on() -> None:
    member = Member()
    async with member.running():
        member.server.crash()
        await settled(30)
        member.server.start()
        member.post()
        await until(lambda: member.pods == PODS_OF_JOB)
