"""The extender's HTTP server with a scripted decider behind it."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest

from extender.arrival import ArrivalClock
from extender.core import FilterAnswer
from extender.metrics import Metrics
from extender.server import ExtenderServer, ServerLimits
from tests.unit.extender_doubles import ManualClock, eventually

POD = {"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {"containers": []}, "status": {}}
BIND = {"PodName": "p", "PodNamespace": "ns", "PodUID": "u", "Node": "n1"}


class Decider:
    """Answers every filter with the first node; holds binds until `release`."""

    def __init__(self):
        self.answer = None
        self.release = asyncio.Event()
        self.held = []
        self.abandoned = []
        self.victims = None
        self.filtered = 0

    def filter(self, pod, node_names):
        self.filtered += 1
        return self.answer or FilterAnswer(node_names=list(node_names)[:1])

    def preempt(self, pod, victims):
        self.victims = victims
        return {node: kept for node, kept in victims.items() if node == "n1"}

    async def bind(self, args, arrived):
        self.held.append((args.pod_uid, args.node, arrived))
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.abandoned.append(args.pod_uid)
            raise
        return "" if args.pod_uid == "u" else f"refused {args.pod_uid}"


class Case:
    def __init__(self, *, max_body=1 << 20, body_timeout=5.0):
        self.clock = ManualClock()
        self.decider = Decider()
        self.metrics = Metrics(version="test")
        self.arrivals = ArrivalClock(self.clock)
        self.server = ExtenderServer(
            self.decider,
            self.clock,
            self.arrivals,
            self.metrics,
            ServerLimits(
                filter_deadline=1.0, body_timeout=body_timeout, max_body=max_body, backlog=64, shutdown_timeout=2.0
            ),
            client_names=None,
        )
        self.url = ""

    @asynccontextmanager
    async def serving(self):
        port = await self.server.start("127.0.0.1", 0, None)
        self.url = f"http://127.0.0.1:{port}"
        async with aiohttp.ClientSession() as self.session:
            try:
                yield self
            finally:
                self.decider.release.set()
                await self.server.stop()

    async def post(self, path, body, **kwargs):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(self.url + path, data=data, **kwargs) as reply:
            return reply.status, await reply.read()

    async def ask(self, path, body):
        status, data = await self.post(path, body)
        assert status == 200
        return json.loads(data)


@pytest.fixture
async def case():
    async with Case().serving() as running:
        yield running


async def test_filter_answers_with_names(case):
    reply = await case.ask("/filter", {"Pod": POD, "Nodes": None, "NodeNames": ["n1", "n2"]})
    assert reply == {
        "Nodes": None, "NodeNames": ["n1"], "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": ""
    }  # fmt: skip


async def test_a_refusal_is_http_200_with_the_reason_in_the_body(case):
    case.decider.answer = FilterAnswer(node_names=[], unresolvable={"n1": "gang ns/g does not fit"})
    reply = await case.ask("/filter", {"Pod": POD, "NodeNames": ["n1", "n2"]})
    assert reply["NodeNames"] == []
    assert reply["FailedAndUnresolvableNodes"] == {"n1": "gang ns/g does not fit"}


async def test_whole_nodes_are_answered_with_whole_nodes(case):
    """nodeCacheCapable=false: kube-scheduler then reads Nodes and ignores NodeNames."""
    nodes = [{"metadata": {"name": name}, "spec": {"podCIDR": "x"}} for name in ("n1", "n2")]
    reply = await case.ask("/filter", {"Pod": POD, "Nodes": {"items": nodes}, "NodeNames": None})
    assert reply["NodeNames"] is None
    assert reply["Nodes"] == {"items": nodes[:1]}


async def test_preempt_keeps_a_subset(case):
    sent = {"n1": {"Pods": [{"UID": "v"}], "NumPDBViolations": 1}, "n2": {"Pods": None}}
    reply = await case.ask("/preempt", {"Pod": POD, "NodeNameToMetaVictims": sent})
    assert case.decider.victims == {"n1": (["v"], 1), "n2": ([], 0)}
    assert reply == {"NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "v"}], "NumPDBViolations": 1}}}


async def test_bind_is_held_until_decided_and_its_error_is_in_the_body(case):
    good = asyncio.ensure_future(case.ask("/bind", BIND))
    bad = asyncio.ensure_future(case.ask("/bind", BIND | {"PodUID": "w"}))
    await eventually(lambda: len(case.decider.held) == 2)
    assert not good.done()
    case.decider.release.set()
    assert await good == {"Error": ""}
    assert await bad == {"Error": "refused w"}


async def test_three_hundred_held_calls_do_not_delay_filter(case):
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as many:
        held = [
            asyncio.ensure_future(many.post(case.url + "/bind", data=json.dumps(BIND | {"PodUID": str(i)})))
            for i in range(300)
        ]
        await eventually(lambda: len(case.decider.held) == 300)
        assert (await case.ask("/filter", {"Pod": POD, "NodeNames": ["n1"]}))["NodeNames"] == ["n1"]
        case.decider.release.set()
        for reply in await asyncio.gather(*held):
            reply.release()


async def test_a_client_that_goes_away_withdraws_its_bind(case):
    call = asyncio.ensure_future(case.post("/bind", BIND))
    await eventually(lambda: len(case.decider.held) == 1)
    call.cancel()
    await eventually(lambda: case.decider.abandoned == ["u"])


# --- requests that have no business here ---


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/filter", b"{", "truncated"),
        ("/filter", b'{"NodeNames":["n1"]}', "Pod"),
        ("/bind", b'{"PodName":"p","PodNamespace":"ns","PodUID":7,"Node":"n"}', "PodUID"),
        ("/preempt", b"[]", "object"),
        ("/bind", b"\xff\xfe", "malformed"),
        ("/bind", b'{"PodName":"\xff"}', "utf-8"),
        ("/filter", b'{"Later":' + b"[" * 100_000, "nested too deeply"),
    ],
)
async def test_a_malformed_body_is_400_with_a_message(case, path, body, said):
    status, text = await case.post(path, body)
    assert status == 400
    assert said.lower() in text.decode().lower()
    assert (await case.ask("/filter", {"Pod": POD, "NodeNames": ["n1"]}))["NodeNames"] == ["n1"]


async def test_a_compressed_body_is_refused(case):
    status, _ = await case.post("/filter", b"x", headers={"Content-Encoding": "gzip"})
    assert status == 415


async def test_other_methods_and_paths_are_refused(case):
    async with case.session.get(case.url + "/filter") as reply:
        assert reply.status == 405
    assert (await case.post("/prioritize", {}))[0] == 404


async def test_a_body_above_the_limit_is_413_announced_or_not():
    async with Case(max_body=1000).serving() as case:
        assert (await case.post("/filter", b" " * 1001))[0] == 413

        async def chunks():
            yield b" " * 600
            yield b" " * 600

        async with case.session.post(case.url + "/filter", data=chunks()) as reply:
            assert reply.status == 413


async def test_a_body_that_does_not_come_is_given_up():
    async with Case(body_timeout=0.05).serving() as case:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(case.url.rpartition(":")[2]))
        writer.write(b"POST /bind HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        await writer.drain()
        assert b" 408 " in await reader.readline()
        writer.close()


# --- requests that lay in a buffer while the process was stopped ---


async def test_a_bind_read_after_a_stop_counts_from_before_it(case):
    stopped_at = case.clock.monotonic()
    case.clock.jump(80.0)
    call = asyncio.ensure_future(case.ask("/bind", BIND))
    await eventually(lambda: len(case.decider.held) == 1)
    assert case.decider.held[0][2] == stopped_at
    case.decider.release.set()
    await call


async def test_a_filter_call_that_is_too_old_is_not_decided(case):
    case.clock.jump(1.5)
    reply = await case.ask("/filter", {"Pod": POD, "NodeNames": ["n1"]})
    assert "too slow" in reply["Error"]
    assert case.decider.filtered == 0
    reply = await case.ask("/preempt", {"Pod": POD, "NodeNameToMetaVictims": {"n1": {"Pods": []}}})
    assert reply == {"NodeNameToMetaVictims": {}}


async def test_requests_are_counted_by_verb_and_status(case):
    await case.ask("/filter", {"Pod": POD, "NodeNames": ["n1"]})
    await case.post("/filter", b"{")
    text = case.metrics.exposition().decode()
    assert 'muster_extender_requests_total{code="200",verb="filter"} 1.0' in text
    assert 'muster_extender_requests_total{code="400",verb="filter"} 1.0' in text
    assert 'muster_extender_request_duration_seconds_count{verb="filter"} 2.0' in text
    assert 'muster_extender_requests_in_flight{verb="filter"} 0.0' in text


async def test_stopping_closes_the_door_and_still_answers_those_inside():
    async with Case().serving() as case:
        call = asyncio.ensure_future(case.ask("/bind", BIND))
        await eventually(lambda: len(case.decider.held) == 1)
        await case.server.stop_accepting()
        async with aiohttp.ClientSession() as other:
            with pytest.raises(aiohttp.ClientConnectorError):
                await other.post(case.url + "/filter", data=b"{}")
        case.decider.release.set()
        assert await call == {"Error": ""}
