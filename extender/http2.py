"""One HTTP/2 connection as its server sees it (RFC 9113), without I/O: bytes in, requests out; replies in, bytes out.

kube-scheduler speaks HTTP/2 where the server offers it, and then all its held binds share one connection; over
HTTP/1.1 each needs its own, with a TLS handshake that costs both sides more than everything else about the call (Go
keeps two idle connections per host). Only what kube-scheduler needs is here: small requests with a body, one reply
each; no push, no priorities, no trailers of our own.

No dynamic header table is allowed (SETTINGS_HEADER_TABLE_SIZE 0), which makes header blocks stateless: requests of one
kind come with the same bytes, and their meaning is remembered.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from hpack import Decoder, HPACKError
from hpack.struct import HeaderTuple

from kube.api.http2_frames import (
    ACK,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    MAX_WINDOW,
    PREFACE,
    PRIORITY,
    Code,
    FrameReader,
    Http2Error,
    Kind,
    Setting,
    expect_size,
    frame,
    go_away,
    read_settings,
    settings,
    string,
    unpadded,
    window_update,
)

MAX_FRAME = 1 << 20
MAX_HEADERS = 32 << 10
_REMEMBERED = 256
"""Header blocks; they differ in content-length only."""


class Head(NamedTuple):
    method: str
    path: str
    encoding: str
    """content-encoding, "identity" if not said."""
    length: int | None
    """content-length."""


class Opened(NamedTuple):
    """A request's head; its body has still to come, unless `Ended` follows."""

    stream: int
    head: Head


class Ended(NamedTuple):
    """The request is complete."""

    stream: int
    body: bytes


class TooLarge(NamedTuple):
    """The body grew above the limit; no more of it is kept."""

    stream: int


class Cancelled(NamedTuple):
    """The client has given this request up: no reply is owed."""

    stream: int


Event = Opened | Ended | TooLarge | Cancelled


@dataclass(slots=True)
class _Stream:
    length: int | None
    window: int
    """Bytes of DATA that may be sent."""
    body: bytearray = field(default_factory=bytearray)
    receiving: bool = True
    too_large: bool = False
    unsent: bytes = b""
    """Of the reply, waiting for the client's window."""


class Http2Connection:
    """max_streams: requests open at once. max_body: bytes of one request's body."""

    def __init__(self, *, max_streams: int, max_body: int) -> None:
        self._max_streams = max_streams
        self._max_body = max_body
        self._reader = FrameReader(MAX_FRAME, PREFACE)
        self._settled = False
        """The client has acknowledged our settings."""
        self._streams: dict[int, _Stream] = {}
        self._last_stream = 0
        self._decoder = Decoder(max_header_list_size=MAX_HEADERS)
        self._remembered: dict[bytes, Head] = {}
        self._block: tuple[int, int, bytearray] | None = None
        """(stream, flags, bytes so far) of a header block that goes on in CONTINUATION frames."""
        self._credit = MAX_WINDOW
        """Bytes of DATA that the client may still send on the connection."""
        self._window = DEFAULT_WINDOW
        self._stream_window = DEFAULT_WINDOW
        self._max_frame = 16_384
        self._outbox: list[bytes] = [_greeting(max_streams, max_body)]

    # --- in ------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Event]:
        """Raises Http2Error; then nothing more may be received, and `take` has the farewell."""
        events: list[Event] = []
        try:
            for kind, flags, stream, payload in self._reader.read(data):
                self._frame(kind, flags, stream, payload, events)
        except Http2Error as error:
            self._outbox.append(go_away(self._last_stream, error.code, str(error)))
            raise
        return events

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        if self._block is not None and (kind != Kind.CONTINUATION or stream != self._block[0]):
            raise Http2Error(Code.PROTOCOL_ERROR, "a header block was interrupted")
        if kind == Kind.HEADERS:
            self._headers(flags, stream, payload, events)
        elif kind == Kind.DATA:
            self._data(flags, stream, payload, events)
        elif kind == Kind.WINDOW_UPDATE:
            self._window_update(stream, payload)
        elif kind == Kind.RST_STREAM:
            expect_size(payload, 4)
            if stream == 0 or stream > self._last_stream:
                raise Http2Error(Code.PROTOCOL_ERROR, "RST_STREAM of a stream that was never opened")
            if self._streams.pop(stream, None) is not None:
                events.append(Cancelled(stream))
        elif kind == Kind.SETTINGS:
            self._settings(flags, stream, payload)
        elif kind == Kind.PING:
            expect_size(payload, 8)
            if not flags & ACK:
                self._outbox.append(frame(Kind.PING, ACK, 0, payload))
        elif kind == Kind.CONTINUATION:
            self._continuation(flags, payload, events)
        elif kind == Kind.PUSH_PROMISE:
            raise Http2Error(Code.PROTOCOL_ERROR, "a client pushes nothing")
        # GOAWAY: the client opens no more streams and closes the connection itself. Unknown kinds are ignored.

    def _headers(self, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        if stream % 2 == 0:
            raise Http2Error(Code.PROTOCOL_ERROR, f"a client's stream has the number {stream}")
        payload = unpadded(flags, payload)
        if flags & PRIORITY:
            payload = payload[5:]
        if flags & END_HEADERS:
            self._headed(stream, flags, payload, events)
        else:
            self._block = (stream, flags, bytearray(payload))

    def _continuation(self, flags: int, payload: bytes, events: list[Event]) -> None:
        if self._block is None:
            raise Http2Error(Code.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        stream, first_flags, block = self._block
        block += payload
        if len(block) > MAX_HEADERS:
            raise Http2Error(Code.ENHANCE_YOUR_CALM, "headers are too long")
        if flags & END_HEADERS:
            self._block = None
            self._headed(stream, first_flags, bytes(block), events)

    def _headed(self, number: int, flags: int, block: bytes, events: list[Event]) -> None:
        head = self._decode(block)
        known = self._streams.get(number)
        if known is not None:  # trailers
            if not known.receiving or not flags & END_STREAM:
                raise Http2Error(Code.PROTOCOL_ERROR, "headers in the middle of a request")
            self._end(number, known, events)
            return
        if number <= self._last_stream:
            raise Http2Error(Code.STREAM_CLOSED, f"stream {number} was closed")
        self._last_stream = number
        if head is None:
            self.reset(number, Code.PROTOCOL_ERROR)
            return
        if len(self._streams) >= self._max_streams:
            self.reset(number, Code.REFUSED_STREAM)
            return
        stream = self._streams[number] = _Stream(head.length, self._stream_window)
        events.append(Opened(number, head))
        if flags & END_STREAM:
            self._end(number, stream, events)

    def _decode(self, block: bytes) -> Head | None:
        """None: decoded, but no request's head."""
        head = self._remembered.get(block)
        if head is not None:
            return head
        try:
            headers = self._decoder.decode(block, raw=True)
            head = _head(headers)
        except HPACKError as error:
            raise Http2Error(Code.COMPRESSION_ERROR, f"headers: {error}") from error
        # Only without a dynamic table do the same bytes mean the same.
        if head is not None and self._settled and self._decoder.header_table_size == 0:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            self._remembered[block] = head
        return head

    def _data(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        self._credit -= len(payload)
        if self._credit < 0:
            raise Http2Error(Code.FLOW_CONTROL_ERROR, "more DATA than was allowed")
        if self._credit < MAX_WINDOW // 2:
            self._outbox.append(window_update(0, MAX_WINDOW - self._credit))
            self._credit = MAX_WINDOW
        if number == 0 or number > self._last_stream:
            raise Http2Error(Code.PROTOCOL_ERROR, "DATA of a stream that was never opened")
        stream = self._streams.get(number)
        if stream is None:
            return  # answered or given up meanwhile
        if not stream.receiving:
            raise Http2Error(Code.STREAM_CLOSED, f"DATA after the end of stream {number}")
        payload = unpadded(flags, payload)
        if len(stream.body) + len(payload) > self._max_body:
            if not stream.too_large:
                stream.too_large = True
                events.append(TooLarge(number))
            return
        stream.body += payload
        if flags & END_STREAM:
            self._end(number, stream, events)

    def _end(self, number: int, stream: _Stream, events: list[Event]) -> None:
        stream.receiving = False
        if stream.length is not None and stream.length != len(stream.body):
            self.reset(number, Code.PROTOCOL_ERROR)
            events.append(Cancelled(number))
            return
        events.append(Ended(number, bytes(stream.body)))
        stream.body = bytearray()

    def _window_update(self, number: int, payload: bytes) -> None:
        expect_size(payload, 4)
        more = int.from_bytes(payload) & MAX_WINDOW
        if number == 0:
            self._window += more
            if more == 0 or self._window > MAX_WINDOW:
                raise Http2Error(Code.FLOW_CONTROL_ERROR, "a window that cannot be")
            for waiting in [number for number, stream in self._streams.items() if stream.unsent]:
                self._send(waiting, self._streams[waiting])
            return
        stream = self._streams.get(number)
        if stream is not None:
            stream.window += more
            if more == 0 or stream.window > MAX_WINDOW:
                raise Http2Error(Code.FLOW_CONTROL_ERROR, "a window that cannot be")
            if stream.unsent:
                self._send(number, stream)

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number or (flags & ACK and payload):
            raise Http2Error(Code.FRAME_SIZE_ERROR, "SETTINGS that cannot be")
        if flags & ACK:
            self._settled = True
            # From here on the client must have dropped its table (RFC 7541 4.2).
            self._decoder.max_allowed_table_size = 0
            return
        # Before any DATA that the new settings allow: the client counts by them once it has read this.
        self._outbox.append(frame(Kind.SETTINGS, ACK, 0))
        for name, value in read_settings(payload):
            if name == Setting.INITIAL_WINDOW_SIZE:
                change = value - self._stream_window
                self._stream_window = value
                for waiting, stream in list(self._streams.items()):
                    stream.window += change
                    if stream.unsent:
                        self._send(waiting, stream)
            elif name == Setting.MAX_FRAME_SIZE:
                self._max_frame = value

    # --- out -----------------------------------------------------------------------------------------------------

    def reply(self, number: int, status: int, content_type: str, body: bytes) -> None:
        """The whole answer of a request; nothing happens if the client has given it up."""
        stream = self._streams.get(number)
        if stream is None:
            return
        self._outbox.append(frame(Kind.HEADERS, END_HEADERS, number, _reply_headers(status, content_type, len(body))))
        stream.unsent = body
        self._send(number, stream)

    def _send(self, number: int, stream: _Stream) -> None:
        """As much of the reply as the windows allow."""
        while True:
            size = min(len(stream.unsent), self._max_frame, max(0, self._window), max(0, stream.window))
            if size == 0 and stream.unsent:
                return
            piece, stream.unsent = stream.unsent[:size], stream.unsent[size:]
            self._window -= size
            stream.window -= size
            self._outbox.append(frame(Kind.DATA, 0 if stream.unsent else END_STREAM, number, piece))
            if not stream.unsent:
                break
        del self._streams[number]
        if stream.receiving:  # the rest of the request is of no use
            self._outbox.append(frame(Kind.RST_STREAM, 0, number, Code.NO_ERROR.to_bytes(4)))

    def reset(self, number: int, code: Code) -> None:
        self._streams.pop(number, None)
        self._outbox.append(frame(Kind.RST_STREAM, 0, number, code.to_bytes(4)))

    def go_away(self) -> None:
        """Asks the client to open no more streams here; those that are open go on."""
        self._outbox.append(go_away(self._last_stream, Code.NO_ERROR, ""))

    @property
    def replying(self) -> bool:
        """Replies wait for the client's window."""
        return any(stream.unsent for stream in self._streams.values())

    def take(self) -> bytes:
        """What is to be written now."""
        out = b"".join(self._outbox)
        self._outbox.clear()
        return out


def _head(headers: Iterable[HeaderTuple]) -> Head | None:
    method = path = ""
    encoding = "identity"
    length: int | None = None
    for name, value in headers:
        if name == b":method":
            method = value.decode("latin-1")
        elif name == b":path":
            path = value.decode("latin-1")
        elif name == b"content-encoding":
            encoding = value.decode("latin-1")
        elif name == b"content-length":
            if not value.isdigit():
                return None
            length = int(value)
    return Head(method, path, encoding, length) if method and path else None


def _greeting(max_streams: int, max_body: int) -> bytes:
    """Windows so wide that no body waits for us: its size is limited, and so is the number of requests."""
    values = {
        Setting.HEADER_TABLE_SIZE: 0,
        Setting.MAX_CONCURRENT_STREAMS: max_streams,
        Setting.INITIAL_WINDOW_SIZE: min(max_body + 65_536, MAX_WINDOW),
        Setting.MAX_FRAME_SIZE: MAX_FRAME,
        Setting.MAX_HEADER_LIST_SIZE: MAX_HEADERS,
    }
    return settings(values) + window_update(0, MAX_WINDOW - DEFAULT_WINDOW)


def _reply_headers(status: int, content_type: str, length: int) -> bytes:
    """HPACK (RFC 7541) by hand: indexed :status 200, the rest as literals that nobody indexes."""
    status_line = b"\x88" if status == 200 else b"\x08" + string(str(status))
    # 0x0f 0x10: content-type (static index 31), 0x0f 0x0d: content-length (28).
    return b"%b\x0f\x10%b\x0f\x0d%b" % (status_line, string(content_type), string(str(length)))
