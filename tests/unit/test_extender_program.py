"""The whole extender in one process: real sockets and its real core, an API server in a dictionary."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest

from extender.options import parse
from extender.program import Extender
from kube.api.api import NODES, PODS
from kube.api.clock import SystemClock
from kube.api.errors import Forbidden
from tests.unit.extender_doubles import ScriptedApi, eventually

POST = "create pods/binding ns/p"


def options(*more):
    return parse(
        [
            "--tls-cert=unused", "--tls-key=unused", "--client-ca=unused", "--listen=127.0.0.1:0",
            "--metrics-listen=127.0.0.1:0", "--scheduler-leader-election=false", "--bind-post-timeout=0.3",
            "--bind-answer-margin=0.4", "--lease-renew=0.2", *more,
        ]
    )  # fmt: skip


def node(name, cpu="4"):
    room = {"cpu": cpu, "memory": "8Gi", "pods": "110"}
    ready = [{"type": "Ready", "status": "True"}]
    return {
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {},
        "status": {"allocatable": room, "capacity": room, "conditions": ready},
    }


def pod(name="p", uid="u", cpu="1", **labels):
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": uid, "labels": labels},
        "spec": {
            "schedulerName": "default-scheduler",
            "containers": [{"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}}],
        },
        "status": {"phase": "Pending"},
    }


class Case:
    def __init__(self):
        self.api = ScriptedApi()
        self.extender: Extender

    @asynccontextmanager
    async def running(self, *more):
        self.extender = Extender(options(*more), self.api, SystemClock(), None, version="test")
        self.task = asyncio.ensure_future(self.extender.run())
        async with aiohttp.ClientSession() as self.session:
            try:
                await eventually(lambda: self.extender.port != 0 or self.task.done())
                yield self
            finally:
                self.extender.stopping.set()
                await asyncio.wait([self.task])

    async def ready(self):
        await eventually(lambda: not self.extender.not_ready())

    async def ask(self, verb, body):
        url = f"http://127.0.0.1:{self.extender.port}/{verb}"
        async with self.session.post(url, data=json.dumps(body)) as reply:
            assert reply.status == 200
            return await reply.json()

    def bind(self, name="p", uid="u", to="n1"):
        args = {"PodName": name, "PodNamespace": "ns", "PodUID": uid, "Node": to}
        return asyncio.ensure_future(self.ask("bind", args))

    async def probe(self, path):
        async with self.session.get(f"http://127.0.0.1:{self.extender.metrics_port}{path}") as reply:
            return reply.status, await reply.text()


@pytest.fixture
def case():
    return Case()


async def test_a_plain_pod_is_filtered_and_bound(case):
    case.api.put(NODES, node("n1"))
    case.api.put(PODS, pod())
    async with case.running():
        await case.ready()
        assert (await case.probe("/readyz"))[0] == 200
        assert (await case.ask("filter", {"Pod": pod(), "NodeNames": ["n1"]}))["NodeNames"] == ["n1"]
        assert await case.bind() == {"Error": ""}
        assert case.api.targets("pods/binding") == [POST]
        await eventually(lambda: ("ClusterCapacity", "", "cluster") in case.api.objects)
        _, text = await case.probe("/metrics")
        assert 'muster_binds_total{result="bound"} 1.0' in text
        assert "muster_leader 1.0" in text
    assert not case.task.exception()


async def test_before_it_is_ready_every_answer_is_an_error_and_says_so(case):
    case.api.answers["list pods /"] = [Forbidden(403, "Forbidden", "no right")] * 1000
    async with case.running():
        status, text = await case.probe("/readyz")
        assert status == 503
        assert "pods" in text
        assert (await case.ask("filter", {"Pod": pod(), "NodeNames": ["n1"]}))["Error"]
        assert (await case.bind())["Error"]
        assert case.api.targets("pods/binding") == []
        assert (await case.probe("/healthz"))[0] == 200


async def test_asked_to_stop_held_calls_fail_together_and_a_post_under_way_is_finished(case):
    """One member of a gang of two waits at the barrier; a plain pod's POST is at the API server."""
    case.api.put(NODES, node("n1"))
    case.api.put(PODS, pod())
    member = pod("m", "um", **{"pod-group.scheduling.sigs.k8s.io/name": "g"})
    member["metadata"]["labels"]["pod-group.scheduling.sigs.k8s.io/min-available"] = "2"
    case.api.put(PODS, member)
    under_way = asyncio.Event()

    async def slow(_):
        under_way.set()
        await asyncio.sleep(0.1)
        return b"{}"

    case.api.answers[POST] = [slow]
    async with case.running():
        await case.ready()
        await case.ask("filter", {"Pod": member, "NodeNames": ["n1"]})
        held = case.bind("m", "um")
        plain = case.bind()
        await under_way.wait()
        case.extender.stopping.set()
        assert (await held)["Error"]
        await plain
        await asyncio.wait([case.task])
    assert case.api.targets("pods/binding") == [POST]
    assert case.api.objects[("Lease", "muster-system", "muster-extender")]["spec"].get("holderIdentity", "") == ""
    assert not case.task.exception()


async def test_a_part_that_fails_ends_the_process_with_its_error(case):
    def bug(_now):
        raise ZeroDivisionError

    async with case.running():
        case.extender.core.tick = bug
        case.extender.core.next_wakeup = lambda: 0.0
        case.extender.runner._alarm.set()
        await asyncio.wait([case.task])
        assert isinstance(case.task.exception(), ExceptionGroup)
        with pytest.raises(aiohttp.ClientError):
            await case.bind()


async def test_without_sockets_a_simulated_scheduler_asks_directly(case):
    extender = Extender(options(), case.api, SystemClock(), None, version="test")
    task = asyncio.ensure_future(extender.run(listen=False))
    await eventually(lambda: extender.runner.deciding)
    assert extender.port == 0
    extender.stopping.set()
    await task
