"""The server over TLS with a client of HTTP/2: what kube-scheduler does, and what only others would."""

import asyncio
import json
import ssl
from contextlib import asynccontextmanager

import aiohttp
import h2.config
import h2.connection
import h2.events
import pytest
import trustme

from extender.arrival import ArrivalClock
from extender.metrics import Metrics
from extender.server import ExtenderServer, ServerLimits
from extender.tls import ServerTls, TlsFiles
from tests.unit.extender_doubles import ManualClock, eventually
from tests.unit.test_extender_server import BIND, POD, Decider

SCHEDULER = "system:kube-scheduler"
FILTER = {"Pod": POD, "NodeNames": ["n1", "n2"]}


class Client(asyncio.Protocol):
    """As many requests as one likes on one connection."""

    def __init__(self):
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.status = {}
        self.bodies = {}
        self.waiting = {}
        self.closed = asyncio.Event()
        self.goodbye = False

    def connection_made(self, transport):
        self.transport = transport
        self.h2.initiate_connection()
        self.flush()

    def data_received(self, data):
        for event in self.h2.receive_data(data):
            if isinstance(event, h2.events.ResponseReceived):
                self.status[event.stream_id] = int(dict(event.headers)[b":status"])
                self.bodies[event.stream_id] = b""
            elif isinstance(event, h2.events.DataReceived):
                self.bodies[event.stream_id] += event.data
            elif isinstance(event, h2.events.StreamEnded):
                self.waiting.pop(event.stream_id).set_result(None)
            elif isinstance(event, h2.events.ConnectionTerminated):
                self.goodbye = True
                # Replies to earlier requests may follow (RFC 9113 6.8); h2 takes the connection for closed.
                self.h2.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN
        self.flush()

    def connection_lost(self, exc):
        self.closed.set()

    def flush(self):
        self.transport.write(self.h2.data_to_send())

    def send(self, path, body, *, method="POST", headers=(), end=True):
        number = self.h2.get_next_available_stream_id()
        self.waiting[number] = asyncio.get_running_loop().create_future()
        self.h2.send_headers(
            number, [(":method", method), (":scheme", "https"), (":authority", "x"), (":path", path), *headers]
        )
        self.h2.send_data(number, body, end_stream=end)
        self.flush()
        return number

    async def reply(self, number):
        """(status, body)."""
        await asyncio.wait_for(self.waiting[number], 5) if number in self.waiting else None
        return self.status[number], self.bodies[number]

    async def ask(self, path, body, **more):
        return await self.reply(self.send(path, json.dumps(body).encode(), **more))


class Case:
    def __init__(self, folder, *, max_body=1 << 20, body_timeout=5.0):
        self.ca = trustme.CA()
        files = TlsFiles(cert=folder / "tls.crt", key=folder / "tls.key", client_ca=folder / "ca.crt")
        self.ca.cert_pem.write_to_path(files.client_ca)
        leaf = self.ca.issue_cert("127.0.0.1")
        leaf.private_key_pem.write_to_path(files.key)
        leaf.cert_chain_pems[0].write_to_path(files.cert)
        self.tls = ServerTls(files)
        self.decider = Decider()
        self.metrics = Metrics(version="test")
        clock = ManualClock()
        self.server = ExtenderServer(
            self.decider,
            clock,
            ArrivalClock(clock),
            self.metrics,
            ServerLimits(
                filter_deadline=1.0, body_timeout=body_timeout, max_body=max_body, backlog=1000, shutdown_timeout=2.0
            ),
            client_names=frozenset([SCHEDULER]),
        )
        self.clock = clock

    @asynccontextmanager
    async def serving(self):
        self.port = await self.server.start("127.0.0.1", 0, self.tls.context)
        try:
            yield self
        finally:
            self.decider.release.set()
            await self.server.stop()

    def context(self, name=SCHEDULER, protocols=("h2", "http/1.1")):
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        self.ca.issue_cert("client.example", common_name=name).configure_cert(context)
        context.set_alpn_protocols(list(protocols))
        return context

    @asynccontextmanager
    async def client(self, **context):
        transport, client = await asyncio.get_running_loop().create_connection(
            Client, "127.0.0.1", self.port, ssl=self.context(**context)
        )
        try:
            assert transport.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
            yield client
        finally:
            transport.close()
            await asyncio.wait_for(client.closed.wait(), 5)


@pytest.fixture
async def case(tmp_path):
    async with Case(tmp_path).serving() as running:
        yield running


@pytest.fixture
async def client(case):
    async with case.client() as joined:
        yield joined


async def test_filter_and_preempt_are_answered(client):
    status, body = await client.ask("/filter", FILTER)
    assert (status, json.loads(body)["NodeNames"]) == (200, ["n1"])
    status, body = await client.ask("/preempt", {"Pod": POD, "NodeNameToMetaVictims": {"n1": {"Pods": []}}})
    assert (status, list(json.loads(body)["NodeNameToMetaVictims"])) == (200, ["n1"])


async def test_a_gang_is_held_on_one_connection_beside_filter_calls(case, client):
    held = [client.send("/bind", json.dumps(BIND).encode()) for _ in range(500)]
    await eventually(lambda: len(case.decider.held) == 500)
    assert (await client.ask("/filter", FILTER))[0] == 200
    assert not client.status.get(held[0])
    case.decider.release.set()
    assert {await client.reply(number) for number in held} == {(200, b'{"Error":""}')}


async def test_a_call_that_the_client_gives_up_is_withdrawn_and_the_others_live(case, client):
    """kube-scheduler's httpTimeout resets the stream."""
    first = client.send("/bind", json.dumps(BIND | {"PodUID": "first"}).encode())
    second = client.send("/bind", json.dumps(BIND).encode())
    await eventually(lambda: len(case.decider.held) == 2)
    client.h2.reset_stream(first, 8)
    client.flush()
    await eventually(lambda: case.decider.abandoned == ["first"])
    case.decider.release.set()
    assert await client.reply(second) == (200, b'{"Error":""}')


async def test_a_connection_that_is_lost_withdraws_all_its_calls(case):
    async with case.client() as client:
        for uid in ("a", "b"):
            client.send("/bind", json.dumps(BIND | {"PodUID": uid}).encode())
        client.send("/bind", b"{", end=False)
        await eventually(lambda: len(case.decider.held) == 2)
    await eventually(lambda: sorted(case.decider.abandoned) == ["a", "b"])
    text = case.metrics.exposition().decode()
    assert 'muster_extender_requests_total{code="499",verb="bind"} 3.0' in text
    assert 'muster_extender_requests_in_flight{verb="bind"} 0.0' in text


async def test_requests_that_have_no_business_here(client):
    assert (await client.ask("/prioritize", {}))[0] == 404
    assert (await client.ask("/filter", {}, method="GET"))[0] == 405
    assert (await client.ask("/filter", {}, headers=[("content-encoding", "gzip")]))[0] == 415
    status, said = await client.reply(client.send("/bind", b'{"PodUID":7}'))
    assert status == 400
    assert b"not an extender/v1 request" in said
    assert (await client.ask("/filter", FILTER))[0] == 200


async def test_another_certificate_is_refused(case):
    async with case.client(name="somebody") as client:
        status, said = await client.ask("/filter", FILTER)
        assert status == 403
        assert b"somebody" in said
    assert case.decider.filtered == 0


async def test_a_body_above_the_limit_is_413_announced_or_not(tmp_path):
    async with Case(tmp_path, max_body=1000).serving() as case, case.client() as client:
        announced = client.send("/filter", b" ", headers=[("content-length", "1001")], end=False)
        assert (await client.reply(announced))[0] == 413
        sent = client.send("/filter", b" " * 1001, end=False)
        assert (await client.reply(sent))[0] == 413


async def test_a_body_that_does_not_come_is_given_up(tmp_path):
    async with Case(tmp_path, body_timeout=0.05).serving() as case, case.client() as client:
        number = client.send("/bind", b"{", end=False)
        await eventually(lambda: 'in_flight{verb="bind"} 1.0' in case.metrics.exposition().decode())
        case.clock.jump(0.1)
        assert (await client.reply(number))[0] == 408


async def test_a_filter_call_that_is_too_old_is_not_decided(case, client):
    case.clock.jump(1.5)
    _, body = await client.ask("/filter", FILTER)
    assert "too slow" in json.loads(body)["Error"]
    assert case.decider.filtered == 0


async def test_a_client_that_breaks_the_protocol_is_told_and_cut_off(case, client):
    client.transport.write(b"\x00\x00\x00\x05\x04\x00\x00\x00\x01")  # PUSH_PROMISE
    await asyncio.wait_for(client.closed.wait(), 5)
    assert client.goodbye


async def test_stopping_answers_those_inside_and_says_goodbye(tmp_path):
    async with Case(tmp_path).serving() as case, case.client() as client:
        held = client.send("/bind", json.dumps(BIND).encode())
        await eventually(lambda: len(case.decider.held) == 1)
        await case.server.stop_accepting()
        stopping = asyncio.ensure_future(case.server.stop())
        await eventually(lambda: client.goodbye)
        case.decider.release.set()
        assert await client.reply(held) == (200, b'{"Error":""}')
        await stopping
        await asyncio.wait_for(client.closed.wait(), 5)


async def test_stopping_does_not_wait_for_ever(tmp_path):
    case = Case(tmp_path)
    case.server._limits = ServerLimits(
        filter_deadline=1.0, body_timeout=5.0, max_body=1000, backlog=10, shutdown_timeout=0.05
    )
    async with case.serving(), case.client() as client:
        client.send("/bind", json.dumps(BIND).encode())
        await eventually(lambda: len(case.decider.held) == 1)
        await case.server.stop()
        assert case.decider.abandoned == ["u"]


async def test_clients_without_http2_are_served_too(case):
    context = case.context(protocols=["http/1.1"])
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        reply = await session.post(f"https://127.0.0.1:{case.port}/filter", data=json.dumps(FILTER))
        assert (await reply.json())["NodeNames"] == ["n1"]
