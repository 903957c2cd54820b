"""One HTTP/2 connection, against an independent implementation (`h2`) as its client, and byte by byte where a client
that keeps to the protocol would never go."""

import struct

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.http2 import Cancelled, Ended, Head, Http2Connection, Opened, TooLarge
from kube.api.http2_frames import PREFACE, Code, Http2Error

JSON = "application/json"
HEADERS = [
    (":method", "POST"),
    (":authority", "127.0.0.1:8443"),
    (":scheme", "https"),
    (":path", "/bind"),
    ("content-type", "application/json"),
    ("user-agent", "Go-http-client/2.0"),
]


class Wire:
    """A client of `h2` joined to a server connection; bytes are handed over in pieces of `chunk`."""

    def __init__(self, *, chunk=1 << 20, max_body=1 << 20, max_streams=1000):
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.server = Http2Connection(max_streams=max_streams, max_body=max_body)
        self.chunk = chunk
        self.seen = []  # by the server
        self.got = []  # by the client
        self.client.initiate_connection()
        self.settle()

    def settle(self):
        """Until neither side has anything to say."""
        while True:
            out = self.client.data_to_send()
            for start in range(0, len(out), self.chunk):
                self.seen += self.server.receive(out[start : start + self.chunk])
            back = self.server.take()
            if back:
                self.got += self.client.receive_data(back)
            if not out and not back:
                return

    def ask(self, body=b"{}", *, headers=(), end=True):
        number = self.client.get_next_available_stream_id()
        self.client.send_headers(number, [*HEADERS, *headers], end_stream=end and not body)
        if body:
            self.client.send_data(number, body, end_stream=end)
        return number

    def answer_of(self, number):
        """(status, content-type, body) that the client has read, once complete."""
        headers = next(
            dict(e.headers) for e in self.got if isinstance(e, h2.events.ResponseReceived) and e.stream_id == number
        )
        data = b"".join(e.data for e in self.got if isinstance(e, h2.events.DataReceived) and e.stream_id == number)
        assert any(isinstance(e, h2.events.StreamEnded) and e.stream_id == number for e in self.got)
        assert int(headers[b"content-length"]) == len(data)
        return int(headers[b":status"]), headers[b"content-type"].decode(), data


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_a_request_and_its_reply(chunk):
    wire = Wire(chunk=chunk)
    number = wire.ask(b'{"a":1}', headers=[("content-length", "7")])
    wire.settle()
    assert wire.seen == [Opened(number, Head("POST", "/bind", "identity", 7)), Ended(number, b'{"a":1}')]
    wire.server.reply(number, 200, JSON, b'{"Error":""}')
    wire.settle()
    assert wire.answer_of(number) == (200, JSON, b'{"Error":""}')


def test_replies_go_out_in_any_order_on_one_connection():
    wire = Wire()
    numbers = [wire.ask(str(index).encode()) for index in range(500)]
    wire.settle()
    for number in reversed(numbers):
        wire.server.reply(number, 200, JSON, str(number).encode())
    wire.settle()
    assert all(wire.answer_of(number)[2] == str(number).encode() for number in numbers)


@pytest.mark.parametrize("status", [200, 404, 413])
def test_other_statuses(status):
    wire = Wire()
    number = wire.ask()
    wire.settle()
    wire.server.reply(number, status, "text/plain; charset=utf-8", b"said\n")
    wire.settle()
    assert wire.answer_of(number) == (status, "text/plain; charset=utf-8", b"said\n")


def test_a_reply_larger_than_the_clients_window_waits_for_it():
    """h2 opens 65,535 bytes per stream and gives more only when it is told that data was consumed."""
    wire = Wire()
    number = wire.ask()
    wire.settle()
    body = bytes(range(256)) * 1000
    wire.server.reply(number, 200, JSON, body)
    wire.settle()
    assert wire.server.replying
    while wire.server.replying:
        wire.client.increment_flow_control_window(30_000)
        wire.client.increment_flow_control_window(30_000, number)
        wire.settle()
    assert wire.answer_of(number)[2] == body


def test_a_window_opened_by_settings_lets_a_waiting_reply_go_on():
    wire = Wire()
    number = wire.ask()
    wire.settle()
    body = b"x" * 100_000
    wire.server.reply(number, 200, JSON, body)
    wire.client.increment_flow_control_window(1 << 20)
    wire.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20})
    wire.settle()
    assert wire.answer_of(number)[2] == body


def test_a_large_body_comes_whole():
    """Above the default window of 65,535 bytes and above one frame: a filter call with 5,000 names has 150 kB."""
    wire = Wire()
    body = bytes(range(256)) * 2000
    number = wire.ask(b"", end=False)
    for start in range(0, len(body), 16_384):
        wire.client.send_data(number, body[start : start + 16_384])
    wire.client.end_stream(number)
    wire.settle()
    assert wire.seen[-1] == Ended(number, body)


def test_the_connections_window_is_refilled():
    """2 GiB may be sent at first; a connection lives for months."""
    wire = Wire(max_body=10)
    sent = (1 << 30) - 5  # 1 GiB later
    wire.server._credit -= sent
    wire.client.outbound_flow_control_window -= sent
    number = wire.ask(b"0123456789")
    wire.settle()
    assert wire.seen[-1] == Ended(number, b"0123456789")
    assert wire.client.outbound_flow_control_window == (1 << 31) - 1


def test_a_body_above_the_limit_is_said_once_and_not_kept():
    wire = Wire(max_body=1000)
    number = wire.ask(b"x" * 900, end=False)
    for _ in range(5):
        wire.client.send_data(number, b"x" * 900)
    wire.settle()
    assert wire.seen[1:] == [TooLarge(number)]
    wire.server.reply(number, 413, JSON, b"too large")
    wire.settle()
    assert wire.answer_of(number)[0] == 413


def test_a_client_that_resets_a_stream_withdraws_its_request():
    wire = Wire()
    number = wire.ask()
    wire.settle()
    wire.client.reset_stream(number)
    wire.settle()
    assert wire.seen[-1] == Cancelled(number)
    wire.server.reply(number, 200, JSON, b"too late")
    assert wire.server.take() == b""


def test_more_streams_than_allowed_are_refused_and_the_others_live():
    """Go then opens another connection."""
    server = Http2Connection(max_streams=2, max_body=1000)
    head = literal(":method", "POST") + literal(":path", "/bind")
    events = server.receive(PREFACE + frame(4, 0, 0) + b"".join(frame(1, 5, number, head) for number in (1, 3, 5)))
    assert [event.stream for event in events if isinstance(event, Ended)] == [1, 3]
    assert frame(3, 0, 5, struct.pack("!L", Code.REFUSED_STREAM)) in server.take()
    server.reply(3, 200, JSON, b"")
    assert server.take().endswith(frame(0, 1, 3))


def test_a_ping_is_answered():
    """Go gives a connection up that does not answer within 15 s."""
    wire = Wire()
    wire.client.ping(b"12345678")
    wire.settle()
    assert any(isinstance(e, h2.events.PingAckReceived) and e.ping_data == b"12345678" for e in wire.got)


def test_trailers_and_padding_are_read_over():
    wire = Wire()
    number = wire.client.get_next_available_stream_id()
    wire.client.send_headers(number, HEADERS)
    wire.client.send_data(number, b"{}", pad_length=20)
    wire.client.send_headers(number, [("later", "x")], end_stream=True)
    wire.settle()
    assert wire.seen[-1] == Ended(number, b"{}")


def test_a_content_length_that_does_not_hold_is_reset():
    server = Http2Connection(max_streams=10, max_body=1000)
    server.receive(PREFACE + frame(4, 0, 0))
    block = literal(":method", "POST") + literal(":path", "/bind") + literal("content-length", "3")
    events = server.receive(frame(1, 4, 1, block) + frame(0, 1, 1, b"{}"))
    assert events[-1] == Cancelled(1)
    assert frame(3, 0, 1, struct.pack("!L", Code.PROTOCOL_ERROR)) in server.take()


def test_the_same_headers_mean_the_same_only_without_a_dynamic_table():
    """Before it has heard our settings, a client may use its table: the same bytes then mean another header later."""
    wire = Wire()
    for index in range(50):
        number = wire.ask(b"", headers=[("content-length", str(index))])
        wire.client.reset_stream(number)
        wire.settle()
    heads = [event.head.length for event in wire.seen if isinstance(event, Opened)]
    assert heads == list(range(50))

    server = Http2Connection(max_streams=10, max_body=1000)
    server.receive(PREFACE + frame(4, 0, 0))
    indexing = b"\x40" + string(":path")  # literal, added to the table
    first = server.receive(frame(1, 5, 1, literal(":method", "POST") + indexing + string("/one")))
    by_table = literal(":method", "POST") + b"\xbe"  # the newest entry
    second = server.receive(frame(1, 5, 3, by_table))
    server.receive(frame(1, 5, 5, literal(":method", "POST") + indexing + string("/two")))
    third = server.receive(frame(1, 5, 7, by_table))
    assert [e.head.path for e in (first[0], second[0], third[0]) if isinstance(e, Opened)] == ["/one", "/one", "/two"]


def test_after_our_settings_were_acknowledged_the_table_must_be_gone():
    server = Http2Connection(max_streams=10, max_body=1000)
    server.receive(PREFACE + frame(4, 0, 0) + frame(4, 1, 0))
    with pytest.raises(Http2Error) as caught:
        server.receive(frame(1, 5, 1, literal(":method", "POST")))
    assert caught.value.code is Code.COMPRESSION_ERROR
    assert server.take().endswith(goodbye(server, caught.value))


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", Code.PROTOCOL_ERROR),
        (PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01", Code.FRAME_SIZE_ERROR),
        ("even stream", Code.PROTOCOL_ERROR),
        ("data before headers", Code.PROTOCOL_ERROR),
        ("reset before headers", Code.PROTOCOL_ERROR),
        ("interrupted headers", Code.PROTOCOL_ERROR),
        ("stray continuation", Code.PROTOCOL_ERROR),
        ("endless headers", Code.ENHANCE_YOUR_CALM),
        ("bad compression", Code.COMPRESSION_ERROR),
        ("reused stream", Code.STREAM_CLOSED),
        ("data after end", Code.STREAM_CLOSED),
        ("headers after end", Code.PROTOCOL_ERROR),
        ("window overflow", Code.FLOW_CONTROL_ERROR),
        ("huge initial window", Code.FLOW_CONTROL_ERROR),
        ("tiny frames", Code.PROTOCOL_ERROR),
        ("half a setting", Code.FRAME_SIZE_ERROR),
        ("short ping", Code.FRAME_SIZE_ERROR),
        ("push", Code.PROTOCOL_ERROR),
        ("all padding", Code.PROTOCOL_ERROR),
    ],
)
def test_a_broken_protocol_ends_the_connection_with_its_code(sent, code):
    head = literal(":method", "POST") + literal(":path", "/bind")
    cases = {
        "even stream": frame(1, 5, 2, head),
        "data before headers": frame(0, 1, 1, b"{}"),
        "reset before headers": frame(3, 0, 1, bytes(4)),
        "interrupted headers": frame(1, 0, 1, head) + frame(6, 0, 0, bytes(8)),
        "stray continuation": frame(9, 4, 1, head),
        "endless headers": frame(1, 0, 1, head) + frame(9, 0, 1, bytes(16_000)) * 3,
        "bad compression": frame(1, 5, 1, b"\xff\xff\xff\xff\xff\xff\xff\xff"),
        "reused stream": frame(1, 5, 3, head) + frame(1, 5, 1, head),
        "data after end": frame(1, 5, 1, head) + frame(0, 1, 1, b"{}"),
        "headers after end": frame(1, 5, 1, head) + frame(1, 5, 1, head),
        "window overflow": frame(8, 0, 0, b"\x7f\xff\xff\xff"),
        "huge initial window": frame(4, 0, 0, struct.pack("!HL", 4, 1 << 31)),
        "tiny frames": frame(4, 0, 0, struct.pack("!HL", 5, 100)),
        "half a setting": frame(4, 0, 0, bytes(5)),
        "short ping": frame(6, 0, 0, bytes(7)),
        "push": frame(5, 4, 1, bytes(8)),
        "all padding": frame(1, 4, 1, head) + frame(0, 8, 1, b"\x05\x00"),
    }
    server = Http2Connection(max_streams=10, max_body=1000)
    with pytest.raises(Http2Error) as caught:
        server.receive(PREFACE + frame(4, 0, 0) + cases[sent] if isinstance(sent, str) else sent)
    assert caught.value.code is code
    assert server.take().endswith(goodbye(server, caught.value))


@given(st.lists(st.integers(min_value=1, max_value=40), min_size=1, max_size=30), st.data())
@settings(max_examples=50, deadline=None)
def test_however_the_bytes_are_cut_the_requests_are_the_same(sizes, data):
    wire = Wire()
    bodies = [bytes([size]) * size for size in sizes]
    for body in bodies:
        wire.ask(body)
    stream = wire.client.data_to_send()
    server = wire.server
    events = []
    at = 0
    while at < len(stream):
        step = data.draw(st.integers(min_value=1, max_value=60))
        events += server.receive(stream[at : at + step])
        at += step
    assert [event.body for event in events if isinstance(event, Ended)] == bodies


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_rubbish_is_refused_or_waited_for_never_worse(rubbish):
    server = Http2Connection(max_streams=10, max_body=1000)
    refusal = None
    try:
        server.receive(PREFACE + rubbish)
    except Http2Error as error:
        refusal = error
    assert refusal is None or server.take().endswith(goodbye(server, refusal))


def goodbye(server, error):
    """The GOAWAY frame of this error."""
    last = server._last_stream
    return frame(7, 0, 0, struct.pack("!LL", last, error.code) + str(error).encode())


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def literal(name, value):
    """HPACK: a literal header that is not indexed, not Huffman-coded."""
    return b"\x00" + string(name) + string(value)


def string(text):
    return bytes((len(text),)) + text.encode()
