"""One HTTP/2 connection as its server sees it (RFC 9113), without I/O: bytes in, requests out; replies in, bytes out.

kube-scheduler speaks HTTP/2 where the server offers it, and then all its held binds share one connection; over
HTTP/1.1 each needs its own, with a TLS handshake that costs both sides more than everything else about the call (Go
keeps two idle connections per host). Only what kube-scheduler needs is here: small requests with a body, one reply
each; no push, no priorities, no trailers of our own.

No dynamic header table is allowed (SETTINGS_HEADER_TABLE_SIZE 0), which makes header blocks stateless: requests of one
kind come with the same bytes, and their meaning is remembered.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from hpack import Decoder, HPACKError
from hpack.struct import HeaderTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_FRAME = 1 << 20
MAX_HEADERS = 32 << 10
_MAX_WINDOW = (1 << 31) - 1
_DEFAULT_WINDOW = 65_535
_REMEMBERED = 256
"""Header blocks; they differ in content-length only."""


class Kind(IntEnum):
    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Code(IntEnum):
    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY = 0x20

_HEADER_TABLE_SIZE, _MAX_STREAMS, _INITIAL_WINDOW, _MAX_FRAME_SIZE, _MAX_HEADER_LIST = 1, 3, 4, 5, 6


class Http2Error(Exception):
    """The peer broke the protocol: the connection ends with this code."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


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
        self._inbox = bytearray()
        self._prefaced = False
        self._settled = False
        """The client has acknowledged our settings."""
        self._streams: dict[int, _Stream] = {}
        self._last_stream = 0
        self._decoder = Decoder(max_header_list_size=MAX_HEADERS)
        self._remembered: dict[bytes, Head] = {}
        self._block: tuple[int, int, bytearray] | None = None
        """(stream, flags, bytes so far) of a header block that goes on in CONTINUATION frames."""
        self._credit = _MAX_WINDOW
        """Bytes of DATA that the client may still send on the connection."""
        self._window = _DEFAULT_WINDOW
        self._stream_window = _DEFAULT_WINDOW
        self._max_frame = 16_384
        self._outbox: list[bytes] = [_settings(max_streams, min(max_body + 65_536, _MAX_WINDOW)), _credit_at_start()]

    # --- in ------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Event]:
        """Raises Http2Error; then nothing more may be received, and `take` has the farewell."""
        self._inbox += data
        events: list[Event] = []
        try:
            self._read(events)
        except Http2Error as error:
            self._outbox.append(_go_away(self._last_stream, error.code, str(error)))
            raise
        return events

    def _read(self, events: list[Event]) -> None:
        inbox = self._inbox
        at = 0
        if not self._prefaced:
            if not PREFACE.startswith(inbox[: len(PREFACE)]):
                raise Http2Error(Code.PROTOCOL_ERROR, "no HTTP/2 preface")
            if len(inbox) < len(PREFACE):
                return
            self._prefaced = True
            at = len(PREFACE)
        size = len(inbox)
        while size - at >= 9:
            length = inbox[at] << 16 | inbox[at + 1] << 8 | inbox[at + 2]
            if length > MAX_FRAME:
                raise Http2Error(Code.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            end = at + 9 + length
            if size < end:
                break
            stream = int.from_bytes(inbox[at + 5 : at + 9]) & _MAX_WINDOW
            self._frame(inbox[at + 3], inbox[at + 4], stream, bytes(inbox[at + 9 : end]), events)
            at = end
        del inbox[:at]

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
            _expect_size(payload, 4)
            if stream == 0 or stream > self._last_stream:
                raise Http2Error(Code.PROTOCOL_ERROR, "RST_STREAM of a stream that was never opened")
            if self._streams.pop(stream, None) is not None:
                events.append(Cancelled(stream))
        elif kind == Kind.SETTINGS:
            self._settings(flags, stream, payload)
        elif kind == Kind.PING:
            _expect_size(payload, 8)
            if not flags & ACK:
                self._outbox.append(_frame(Kind.PING, ACK, 0, payload))
        elif kind == Kind.CONTINUATION:
            self._continuation(flags, payload, events)
        elif kind == Kind.PUSH_PROMISE:
            raise Http2Error(Code.PROTOCOL_ERROR, "a client pushes nothing")
        # GOAWAY: the client opens no more streams and closes the connection itself. Unknown kinds are ignored.

    def _headers(self, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        if stream % 2 == 0:
            raise Http2Error(Code.PROTOCOL_ERROR, f"a client's stream has the number {stream}")
        if flags & PADDED:
            payload = _unpadded(payload)
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
        if self._credit < _MAX_WINDOW // 2:
            self._outbox.append(_frame(Kind.WINDOW_UPDATE, 0, 0, (_MAX_WINDOW - self._credit).to_bytes(4)))
            self._credit = _MAX_WINDOW
        if number == 0 or number > self._last_stream:
            raise Http2Error(Code.PROTOCOL_ERROR, "DATA of a stream that was never opened")
        stream = self._streams.get(number)
        if stream is None:
            return  # answered or given up meanwhile
        if not stream.receiving:
            raise Http2Error(Code.STREAM_CLOSED, f"DATA after the end of stream {number}")
        if flags & PADDED:
            payload = _unpadded(payload)
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
        _expect_size(payload, 4)
        more = int.from_bytes(payload) & _MAX_WINDOW
        if number == 0:
            self._window += more
            if more == 0 or self._window > _MAX_WINDOW:
                raise Http2Error(Code.FLOW_CONTROL_ERROR, "a window that cannot be")
            for waiting in [number for number, stream in self._streams.items() if stream.unsent]:
                self._send(waiting, self._streams[waiting])
            return
        stream = self._streams.get(number)
        if stream is not None:
            stream.window += more
            if more == 0 or stream.window > _MAX_WINDOW:
                raise Http2Error(Code.FLOW_CONTROL_ERROR, "a window that cannot be")
            if stream.unsent:
                self._send(number, stream)

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number or len(payload) % 6 or (flags & ACK and payload):
            raise Http2Error(Code.FRAME_SIZE_ERROR, "SETTINGS that cannot be")
        if flags & ACK:
            self._settled = True
            # From here on the client must have dropped its table (RFC 7541 4.2).
            self._decoder.max_allowed_table_size = 0
            return
        # Before any DATA that the new settings allow: the client counts by them once it has read this.
        self._outbox.append(_frame(Kind.SETTINGS, ACK, 0))
        for name, value in struct.iter_unpack("!HL", payload):
            if name == _INITIAL_WINDOW:
                if value > _MAX_WINDOW:
                    raise Http2Error(Code.FLOW_CONTROL_ERROR, "a window that cannot be")
                change = value - self._stream_window
                self._stream_window = value
                for waiting, stream in list(self._streams.items()):
                    stream.window += change
                    if stream.unsent:
                        self._send(waiting, stream)
            elif name == _MAX_FRAME_SIZE:
                if not 16_384 <= value < 1 << 24:
                    raise Http2Error(Code.PROTOCOL_ERROR, "a frame size that cannot be")
                self._max_frame = value

    # --- out -----------------------------------------------------------------------------------------------------

    def reply(self, number: int, status: int, content_type: str, body: bytes) -> None:
        """The whole answer of a request; nothing happens if the client has given it up."""
        stream = self._streams.get(number)
        if stream is None:
            return
        self._outbox.append(_frame(Kind.HEADERS, END_HEADERS, number, _reply_headers(status, content_type, len(body))))
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
            self._outbox.append(_frame(Kind.DATA, 0 if stream.unsent else END_STREAM, number, piece))
            if not stream.unsent:
                break
        del self._streams[number]
        if stream.receiving:  # the rest of the request is of no use
            self._outbox.append(_frame(Kind.RST_STREAM, 0, number, Code.NO_ERROR.to_bytes(4)))

    def reset(self, number: int, code: Code) -> None:
        self._streams.pop(number, None)
        self._outbox.append(_frame(Kind.RST_STREAM, 0, number, code.to_bytes(4)))

    def go_away(self) -> None:
        """Asks the client to open no more streams here; those that are open go on."""
        self._outbox.append(_go_away(self._last_stream, Code.NO_ERROR, ""))

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


def _frame(kind: Kind, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack("!BHBBL", len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def _settings(max_streams: int, stream_window: int) -> bytes:
    values = (
        (_HEADER_TABLE_SIZE, 0),
        (_MAX_STREAMS, max_streams),
        (_INITIAL_WINDOW, stream_window),
        (_MAX_FRAME_SIZE, MAX_FRAME),
        (_MAX_HEADER_LIST, MAX_HEADERS),
    )
    return _frame(Kind.SETTINGS, 0, 0, b"".join(struct.pack("!HL", name, value) for name, value in values))


def _credit_at_start() -> bytes:
    return _frame(Kind.WINDOW_UPDATE, 0, 0, (_MAX_WINDOW - _DEFAULT_WINDOW).to_bytes(4))


def _go_away(last_stream: int, code: Code, message: str) -> bytes:
    return _frame(Kind.GOAWAY, 0, 0, struct.pack("!LL", last_stream, code) + message.encode())


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise Http2Error(Code.PROTOCOL_ERROR, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]


def _expect_size(payload: bytes, size: int) -> None:
    if len(payload) != size:
        raise Http2Error(Code.FRAME_SIZE_ERROR, f"a frame of {len(payload)} bytes instead of {size}")


def _reply_headers(status: int, content_type: str, length: int) -> bytes:
    """HPACK (RFC 7541) by hand: indexed :status 200, the rest as literals that nobody indexes."""
    status_line = b"\x88" if status == 200 else b"\x08" + _string(str(status))
    # 0x0f 0x10: content-type (static index 31), 0x0f 0x0d: content-length (28).
    return b"%b\x0f\x10%b\x0f\x0d%b" % (status_line, _string(content_type), _string(str(length)))


def _string(text: str) -> bytes:
    """Not Huffman-coded, and short: one byte of length (below 127)."""
    return bytes((len(text),)) + text.encode()
