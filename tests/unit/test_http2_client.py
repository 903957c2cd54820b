"""The client's end of HTTP/2, against an independent implementation (`h2`) as the server, and over TLS."""

import asyncio
import ssl
import struct
from contextlib import asynccontextmanager
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
import trustme
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from kube.api.api import PODS
from kube.api.client import ClientOptions, HttpApi
from kube.api.connection import Authorization, Connection
from kube.api.errors import Conflict, Forbidden, TooManyRequests, Unreachable
from kube.api.http2_client import Answer, Broken, Http2Client
from kube.api.http2_frames import Code, Http2Error, Kind, frame, string
from tests.unit.extender_doubles import eventually

HEADERS = [("content-type", "application/json")]
OK = [(b":status", b"201"), (b"audit-id", b"0e9cd7b5"), (b"content-type", b"application/json")]


class Wire:
    def __init__(self, *, chunk=1 << 20, max_body=1 << 20):
        self.client = Http2Client("127.0.0.1:6443", max_body=max_body)
        self.server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self.chunk = chunk
        self.seen = []  # by the server
        self.got = []  # by the client
        self.server.initiate_connection()
        self.settle()

    def settle(self):
        while True:
            out = self.client.take()
            if out:
                self.seen += self.server.receive_data(out)
            back = self.server.data_to_send()
            for start in range(0, len(back), self.chunk):
                self.got += self.client.receive(back[start : start + self.chunk])
            if not out and not back:
                return

    def ask(self, body=b"{}", path="/api/v1/namespaces/ns/pods/p/binding"):
        number = self.client.ask("POST", path, HEADERS, body)
        self.settle()
        return number

    def answer(self, number, headers=OK, body=b"done"):
        self.server.send_headers(number, headers)
        self.server.send_data(number, body, end_stream=True)
        self.settle()


@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_a_request_and_its_answer(chunk):
    wire = Wire(chunk=chunk)
    number = wire.ask(b'{"kind":"Binding"}', path="/" + "long" * 100)
    [request] = [e for e in wire.seen if isinstance(e, h2.events.RequestReceived)]
    assert dict(request.headers) == {
        b":method": b"POST",
        b":scheme": b"https",
        b":authority": b"127.0.0.1:6443",
        b":path": b"/" + b"long" * 100,
        b"content-type": b"application/json",
        b"content-length": b"18",
    }
    assert b"".join(e.data for e in wire.seen if isinstance(e, h2.events.DataReceived)) == b'{"kind":"Binding"}'
    wire.answer(number)
    assert wire.got == [Answer(number, 201, {}, b"done")]
    assert wire.client.idle


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
def test_other_methods(method):
    wire = Wire()
    number = wire.client.ask(method, "/x", HEADERS, b"{}")
    wire.settle()
    [request] = [e for e in wire.seen if isinstance(e, h2.events.RequestReceived)]
    assert dict(request.headers)[b":method"] == method.encode()
    wire.answer(number, [(b":status", b"200")])
    assert wire.got == [Answer(number, 200, {}, b"done")]


def test_of_a_refusal_the_headers_are_read():
    wire = Wire()
    for code in (409, 404, 429, 500):
        number = wire.ask()
        wire.answer(number, [(b":status", str(code).encode()), (b"retry-after", b"7")], b"no")
        assert wire.got[-1] == Answer(number, code, {"retry-after": "7"}, b"no")


def test_answers_in_any_order_and_without_a_body():
    wire = Wire()
    numbers = [wire.ask() for _ in range(50)]
    for number in reversed(numbers):
        wire.server.send_headers(number, [(b":status", b"200")], end_stream=True)
    wire.settle()
    assert wire.got == [Answer(number, 200, {}, b"") for number in reversed(numbers)]


@pytest.mark.parametrize(
    "start",
    [b"\x08\x03201", b"\x0e\x82\x10\x03", b"\x20\x0e\x82\x10\x03", b"\x48\x82\x10\x03", b"\x18\x03201", b"\x20\x88"],
)
def test_a_success_is_known_by_its_first_bytes_however_it_is_coded(start):
    """Go says first that it has dropped its table (0x20); then, for 201, a Huffman-coded literal with the name of the
    static table's entry 14."""
    client = Http2Client("x", max_body=10)
    number = client.ask("POST", "/", [], b"")
    [answer] = client.receive(frame(Kind.HEADERS, 5, number, start + b"\x00" + string("audit-id") + string("x" * 36)))
    assert isinstance(answer, Answer)
    assert (answer.status, answer.headers) == (200 if start.endswith(b"\x88") else 201, {})


def test_a_body_beyond_the_servers_window_waits_for_it():
    wire = Wire()
    body = bytes(range(256)) * 400
    number = wire.ask(body)

    def received():
        return b"".join(e.data for e in wire.seen if isinstance(e, h2.events.DataReceived))

    assert len(received()) == 65_535
    while len(received()) < len(body):
        wire.server.increment_flow_control_window(10_000)
        wire.server.increment_flow_control_window(10_000, number)
        wire.settle()
    assert received() == body


def test_a_long_answer_comes_whole_and_one_too_long_is_given_up():
    wire = Wire(max_body=1 << 22)
    number = wire.ask()
    body = b"x" * 3_000_000
    wire.server.send_headers(number, OK)
    at = 0
    while at < len(body):
        room = min(wire.server.local_flow_control_window(number), wire.server.max_outbound_frame_size, len(body) - at)
        assert room > 0
        wire.server.send_data(number, body[at : at + room], end_stream=at + room == len(body))
        at += room
        wire.settle()
    assert wire.got == [Answer(number, 201, {}, body)]

    wire = Wire(max_body=1000)
    number = wire.ask()
    wire.server.send_headers(number, OK)
    wire.server.send_data(number, b"x" * 1001)
    wire.settle()
    assert wire.got == [Broken(number, "an answer of more than 1000 bytes")]
    assert [e.stream_id for e in wire.seen if isinstance(e, h2.events.StreamReset)] == [number]


def test_what_is_given_up_is_reset_and_its_late_answer_ignored():
    wire = Wire()
    number = wire.ask()
    wire.client.give_up(number)
    late = frame(Kind.HEADERS, 4, number, b"\x88") + frame(Kind.DATA, 1, number, b"late")
    assert wire.client.receive(late) == []
    wire.settle()
    assert [e.stream_id for e in wire.seen if isinstance(e, h2.events.StreamReset)] == [number]


def test_the_servers_limit_of_streams_is_kept():
    client = Http2Client("x", max_body=10)
    client.receive(frame(Kind.SETTINGS, 0, 0, struct.pack("!HL", 3, 2)))
    assert [client.may_ask, client.ask("POST", "/", [], b""), client.ask("POST", "/", [], b"")] == [True, 1, 3]
    assert not client.may_ask
    assert not client.leaving
    client.receive(frame(Kind.HEADERS, 5, 1, b"\x88"))
    assert client.may_ask


def test_a_server_that_goes_away_answers_what_it_has_begun_and_nothing_else():
    client = Http2Client("x", max_body=10)
    first, second = client.ask("POST", "/", [], b""), client.ask("POST", "/", [], b"")
    [broken] = client.receive(frame(Kind.GOAWAY, 0, 0, struct.pack("!LL", first, 0)))
    assert broken.stream == second
    assert client.leaving
    assert client.receive(frame(Kind.HEADERS, 5, first, b"\x88")) == [Answer(first, 200, {}, b"")]
    assert client.idle


def test_a_server_that_resets_a_request():
    client = Http2Client("x", max_body=10)
    number = client.ask("POST", "/", [], b"")
    [broken] = client.receive(frame(Kind.RST_STREAM, 0, number, Code.REFUSED_STREAM.to_bytes(4)))
    assert broken == Broken(number, "the server reset the stream (code 7)")


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(Kind.PUSH_PROMISE, 4, 1, bytes(4)), Code.PROTOCOL_ERROR),
        (frame(Kind.DATA, 1, 1, b"{}"), Code.PROTOCOL_ERROR),  # before headers
        (frame(Kind.HEADERS, 5, 1, b"\xff\xff\xff\xff\xff\xff"), Code.COMPRESSION_ERROR),
        (frame(Kind.HEADERS, 5, 1, b"\x00" + string("a") + string("b")), Code.PROTOCOL_ERROR),  # no status
        (frame(Kind.HEADERS, 0, 1, b"\x88") + frame(Kind.PING, 0, 0, bytes(8)), Code.PROTOCOL_ERROR),
        (frame(Kind.CONTINUATION, 4, 1, b"\x88"), Code.PROTOCOL_ERROR),
        (frame(Kind.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), Code.FLOW_CONTROL_ERROR),
        (b"\xff\xff\xff\x00\x00\x00\x00\x00\x01", Code.FRAME_SIZE_ERROR),
    ],
)
def test_a_broken_protocol_ends_the_connection(sent, code):
    client = Http2Client("x", max_body=10)
    client.ask("POST", "/", [], b"")
    with pytest.raises(Http2Error) as caught:
        client.receive(sent)
    assert caught.value.code is code


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_rubbish_is_refused_or_waited_for_never_worse(rubbish):
    client = Http2Client("x", max_body=10)
    client.ask("POST", "/", [], b"")
    refusal = None
    try:
        client.receive(rubbish)
    except Http2Error as error:
        refusal = error
    assert refusal is None or str(refusal).encode() in client.take()


# --- over TLS, as the API ---


class Server(asyncio.Protocol):
    """An API server's end: answers by `script(path, body)` -> (status, headers, body), or never with None."""

    def __init__(self, place):
        self.place = place

    def connection_made(self, transport):
        self.transport = transport
        self.place.connections.append(self)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        self.requests = {}
        self.h2.initiate_connection()
        self.flush()

    def data_received(self, data):
        for event in self.h2.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                self.requests[event.stream_id] = [dict(event.headers), b""]
            elif isinstance(event, h2.events.DataReceived):
                self.requests[event.stream_id][1] += event.data
            elif isinstance(event, h2.events.StreamReset):
                self.place.resets.append(event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                headers, body = self.requests[event.stream_id]
                self.place.seen.append((headers, body))
                answer = self.place.script(headers, body)
                if answer is not None:
                    status, more, text = answer
                    self.h2.send_headers(event.stream_id, [(":status", str(status)), *more])
                    self.h2.send_data(event.stream_id, text, end_stream=True)
        self.flush()

    def flush(self):
        self.transport.write(self.h2.data_to_send())


class Place:
    def __init__(self):
        self.ca = trustme.CA()
        self.connections, self.seen, self.resets = [], [], []
        self.script: Any = lambda headers, body: (201, [], b"{}")

    @asynccontextmanager
    async def api(self, *, authorization=None, protocols=("h2", "http/1.1"), call_seconds=5.0):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ca.issue_cert("127.0.0.1").configure_cert(context)
        context.set_alpn_protocols(list(protocols))
        server = await asyncio.get_running_loop().create_server(lambda: Server(self), "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        trust = ssl.create_default_context()
        self.ca.configure_trust(trust)
        connection = Connection(f"https://127.0.0.1:{port}/prefix", ssl_context=trust, authorization=authorization)
        options = ClientOptions(multiplex=True, call_seconds=call_seconds)
        try:
            async with HttpApi(connection, user_agent="tests", options=options) as api:
                yield api
        finally:
            server.close()


@pytest.fixture
def place():
    return Place()


async def bind(api, name="p"):
    return await api.create(PODS, b'{"kind":"Binding"}', "ns", name=name, subresource="binding")


async def test_a_burst_of_bindings_shares_one_connection(place):
    async with place.api() as api:
        assert set(await asyncio.gather(*(bind(api, f"p{index}") for index in range(300)))) == {b"{}"}
    assert len(place.connections) == 1
    headers, body = place.seen[0]
    assert headers[":path"] == "/prefix/api/v1/namespaces/ns/pods/p0/binding"
    assert (headers["user-agent"], headers["content-type"]) == ("tests", "application/json")
    assert body == b'{"kind":"Binding"}'
    assert {headers[":path"].split("/")[-2] for headers, _ in place.seen} == {f"p{index}" for index in range(300)}


async def test_refusals_are_the_errors_they_always_were(place):
    async with place.api() as api:
        place.script = lambda *_: (409, [], b'{"reason":"Conflict","message":"already assigned"}')
        with pytest.raises(Conflict, match="already assigned"):
            await bind(api)
        place.script = lambda *_: (429, [("retry-after", "3")], b"{}")
        with pytest.raises(TooManyRequests) as caught:
            await bind(api)
        assert caught.value.retry_after == 3.0


async def test_a_token_that_is_refused_is_renewed_once(place):
    async def fresh():
        return "Bearer new", None

    place.script = lambda headers, _: (201 if headers["authorization"] == "Bearer new" else 401, [], b"{}")
    async with place.api(authorization=Authorization("Bearer old", reload=fresh)) as api:
        assert await bind(api) == b"{}"
        place.script = lambda *_: (401, [], b"{}")
        with pytest.raises(Forbidden):
            await bind(api)


async def test_a_call_without_an_answer_is_given_up_and_the_next_goes_over_another_connection(place):
    """Lost packets look like that: whoever waits longer on the same connection may wait in vain."""
    place.script = lambda *_: None
    async with place.api(call_seconds=0.2) as api:
        with pytest.raises(Unreachable, match=r"no answer within 0\.2 s"):
            await bind(api)
        place.script = lambda *_: (201, [], b"{}")
        assert await bind(api) == b"{}"
        await eventually(lambda: len(place.resets) == 1)
    assert len(place.connections) == 2


async def test_a_connection_that_is_lost_fails_its_calls_and_no_other(place):
    place.script = lambda *_: None
    async with place.api() as api:
        calls = [asyncio.ensure_future(bind(api)) for _ in range(3)]
        await eventually(lambda: len(place.seen) == 3)
        place.connections[0].transport.abort()
        for call in calls:
            with pytest.raises(Unreachable, match="connection was lost"):
                await call
        place.script = lambda *_: (201, [], b"{}")
        assert await bind(api) == b"{}"


async def test_a_server_that_says_goodbye_is_left_in_peace(place):
    async with place.api() as api:
        await bind(api)
        place.connections[0].h2.close_connection()
        place.connections[0].flush()
        await eventually(place.connections[0].transport.is_closing)
        assert await bind(api) == b"{}"
    assert len(place.connections) == 2


async def test_a_closed_client_makes_no_calls(place):
    async with place.api() as api:
        await bind(api)
    with pytest.raises(Unreachable, match="closed"):
        await bind(api)


async def test_a_server_without_http2_is_asked_as_ever(place):
    async def handle(request):
        place.seen.append((request.version, await request.read()))
        return web.json_response({}, status=201)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    place.ca.issue_cert("127.0.0.1").configure_cert(context)
    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    trust = ssl.create_default_context()
    place.ca.configure_trust(trust)
    connection = Connection(f"https://127.0.0.1:{site.port}", ssl_context=trust)
    async with HttpApi(connection, user_agent="tests", options=ClientOptions(multiplex=True)) as api:
        assert [await bind(api), await bind(api)] == [b"{}", b"{}"]
    assert place.seen == [((1, 1), b'{"kind":"Binding"}')] * 2
    await runner.cleanup()


async def test_nobody_there_is_unreachable(place):
    async with place.api() as api:
        pass
    other = HttpApi(Connection(api.server, ssl_context=ssl.create_default_context()), user_agent="tests",
                    options=ClientOptions(multiplex=True))  # fmt: skip
    async with other:
        with pytest.raises(Unreachable):
            await bind(other)
