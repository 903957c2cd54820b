"""One HTTP/2 connection as its client sees it (RFC 9113), without I/O. For small requests with a body and one answer
each, such as Bindings: no push, no trailers.

We allow the server no dynamic header table: every header block then speaks for itself, and of an answer that is a
success nothing is decoded but its status.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from hpack import Decoder, HPACKError

from kube.api.http2_frames import (
    ACK,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    MAX_WINDOW,
    PREFACE,
    PRIORITY,
    Code,
    Frame,
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

_MAX_FRAME = 1 << 20
_STREAM_WINDOW = 1 << 20
_MAX_HEADERS = 64 << 10


class Answer(NamedTuple):
    """headers: lower-case names; empty with a status below 300."""

    stream: int
    status: int
    headers: dict[str, str]
    body: bytes


class Broken(NamedTuple):
    """No answer will come."""

    stream: int
    why: str


Event = Answer | Broken


@dataclass(slots=True)
class _Stream:
    window: int
    """Bytes of DATA that may be sent."""
    unsent: bytes = b""
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)


class Http2Client:
    """authority: host and port. max_body: bytes of one answer; a longer one is given up."""

    def __init__(self, authority: str, *, max_body: int) -> None:
        self._max_body = max_body
        self._reader = FrameReader(_MAX_FRAME)
        self._decoder = Decoder(max_header_list_size=_MAX_HEADERS)
        self._decoder.max_allowed_table_size = 0
        self._decoder.header_table_size = 0
        self._common = b"\x87\x01" + string(authority)  # :scheme https, :authority
        self._streams: dict[int, _Stream] = {}
        self._next = 1
        self._max_streams = 100
        """Until the server says otherwise: what RFC 9113 recommends at least."""
        self._leaving = False
        self._block: tuple[int, int, bytes] | None = None
        self._window = DEFAULT_WINDOW
        self._stream_window = DEFAULT_WINDOW
        self._max_frame = 16_384
        self._credit = MAX_WINDOW
        values = {
            Setting.HEADER_TABLE_SIZE: 0,
            Setting.ENABLE_PUSH: 0,
            Setting.INITIAL_WINDOW_SIZE: _STREAM_WINDOW,
            Setting.MAX_FRAME_SIZE: _MAX_FRAME,
            Setting.MAX_HEADER_LIST_SIZE: _MAX_HEADERS,
        }
        self._outbox = [PREFACE, settings(values), window_update(0, MAX_WINDOW - DEFAULT_WINDOW)]

    @property
    def may_ask(self) -> bool:
        """A request can be made here now."""
        return not self._leaving and len(self._streams) < self._max_streams and self._next < MAX_WINDOW

    @property
    def leaving(self) -> bool:
        """No request can be made here any more."""
        return self._leaving or self._next >= MAX_WINDOW

    @property
    def idle(self) -> bool:
        return not self._streams

    def leave(self) -> None:
        """Make no more requests here."""
        self._leaving = True

    def ask(self, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> int:
        """The number of the request; `may_ask` must be true."""
        number = self._next
        self._next += 2
        block = bytearray(b"\x83" if method == "POST" else b"\x02" + string(method))
        block += self._common + b"\x04" + string(path)
        for name, value in headers:
            block += b"\x00" + string(name) + string(value)
        block += b"\x0f\x0d" + string(str(len(body)))  # content-length
        self._outbox.append(frame(Kind.HEADERS, END_HEADERS, number, bytes(block)))
        stream = self._streams[number] = _Stream(self._stream_window, body)
        self._send(number, stream)
        return number

    def give_up(self, number: int) -> None:
        """The answer is not waited for any more. The server may have done what it was asked all the same."""
        if self._streams.pop(number, None) is not None:
            self._reset(number, Code.CANCEL)

    def take(self) -> bytes:
        """What is to be written now."""
        out = b"".join(self._outbox)
        self._outbox.clear()
        return out

    def receive(self, data: bytes) -> list[Event]:
        """Raises Http2Error; then nothing more may be received."""
        events: list[Event] = []
        try:
            for each in self._reader.read(data):
                self._frame(each, events)
        except Http2Error as error:
            self._outbox.append(go_away(0, error.code, str(error)))
            raise
        return events

    def _frame(self, each: Frame, events: list[Event]) -> None:
        kind, flags, number, payload = each
        if self._block is not None and (kind != Kind.CONTINUATION or number != self._block[0]):
            raise Http2Error(Code.PROTOCOL_ERROR, "a header block was interrupted")
        if kind == Kind.HEADERS:
            block = unpadded(flags, payload)
            if flags & PRIORITY:
                block = block[5:]
            self._header_block(number, flags, block, flags, events)
        elif kind == Kind.DATA:
            self._data(flags, number, payload, events)
        elif kind == Kind.WINDOW_UPDATE:
            self._window_update(number, payload)
        elif kind == Kind.RST_STREAM:
            expect_size(payload, 4)
            if self._streams.pop(number, None) is not None:
                events.append(Broken(number, f"the server reset the stream (code {int.from_bytes(payload)})"))
        elif kind == Kind.SETTINGS:
            self._read_settings(flags, payload)
        elif kind == Kind.PING:
            expect_size(payload, 8)
            if not flags & ACK:
                self._outbox.append(frame(Kind.PING, ACK, 0, payload))
        elif kind == Kind.GOAWAY:
            self._goes_away(payload, events)
        elif kind == Kind.CONTINUATION:
            if self._block is None:
                raise Http2Error(Code.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
            _, first_flags, block = self._block
            self._header_block(number, first_flags, block + payload, flags, events)
        elif kind == Kind.PUSH_PROMISE:
            raise Http2Error(Code.PROTOCOL_ERROR, "a push that was not allowed")

    def _header_block(self, number: int, first_flags: int, block: bytes, flags: int, events: list[Event]) -> None:
        if len(block) > _MAX_HEADERS:
            raise Http2Error(Code.ENHANCE_YOUR_CALM, "headers are too long")
        if not flags & END_HEADERS:
            self._block = (number, first_flags, block)
            return
        self._block = None
        stream = self._streams.get(number)
        if stream is None:
            return
        if not stream.status:
            stream.status, stream.headers = self._head(block)
            if stream.status < 200:  # 1xx: the answer proper follows
                stream.status = 0
        if first_flags & END_STREAM:
            self._answered(number, stream, events)

    def _head(self, block: bytes) -> tuple[int, dict[str, str]]:
        at = 0
        while at < len(block) and block[at] & 0xE0 == 0x20:  # the server says that it has dropped its table
            at += 1
        quick = _QUICK.get(block[at : at + 1]) or _QUICK.get(block[at : at + 5]) or _QUICK.get(block[at : at + 4])
        if quick is not None:
            return quick, {}
        try:
            found = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._decode(block)}
        except HPACKError as error:
            raise Http2Error(Code.COMPRESSION_ERROR, f"headers: {error}") from error
        status = found.pop(":status", "")
        if not status.isdecimal():
            raise Http2Error(Code.PROTOCOL_ERROR, "an answer without status")
        return int(status), found

    def _decode(self, block: bytes) -> list[tuple[bytes, bytes]]:
        return [(bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True)]

    def _data(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        self._credit -= len(payload)
        if self._credit < 0:
            raise Http2Error(Code.FLOW_CONTROL_ERROR, "more DATA than was allowed")
        if self._credit < MAX_WINDOW // 2:
            self._outbox.append(window_update(0, MAX_WINDOW - self._credit))
            self._credit = MAX_WINDOW
        stream = self._streams.get(number)
        if stream is None:
            return
        stream.body += unpadded(flags, payload)
        if len(stream.body) > self._max_body:
            del self._streams[number]
            self._reset(number, Code.CANCEL)
            events.append(Broken(number, f"an answer of more than {self._max_body} bytes"))
        elif flags & END_STREAM:
            self._answered(number, stream, events)
        elif payload:
            self._outbox.append(window_update(number, len(payload)))

    def _answered(self, number: int, stream: _Stream, events: list[Event]) -> None:
        if not stream.status:
            raise Http2Error(Code.PROTOCOL_ERROR, "an answer without headers")
        del self._streams[number]
        if stream.unsent:  # answered without having read all of it
            self._reset(number, Code.CANCEL)
        events.append(Answer(number, stream.status, stream.headers, bytes(stream.body)))

    def _goes_away(self, payload: bytes, events: list[Event]) -> None:
        """Requests up to the number it names are still answered."""
        self._leaving = True
        last = int.from_bytes(payload[:4]) & MAX_WINDOW
        for number in [number for number in self._streams if number > last]:
            del self._streams[number]
            events.append(Broken(number, "the server is going away and has not begun with this"))

    def _read_settings(self, flags: int, payload: bytes) -> None:
        if flags & ACK:
            return
        self._outbox.append(frame(Kind.SETTINGS, ACK, 0))
        for name, value in read_settings(payload):
            if name == Setting.MAX_CONCURRENT_STREAMS:
                self._max_streams = value
            elif name == Setting.MAX_FRAME_SIZE:
                self._max_frame = value
            elif name == Setting.INITIAL_WINDOW_SIZE:
                change = value - self._stream_window
                self._stream_window = value
                for number, stream in self._streams.items():
                    stream.window += change
                    self._send(number, stream)

    def _window_update(self, number: int, payload: bytes) -> None:
        expect_size(payload, 4)
        more = int.from_bytes(payload) & MAX_WINDOW
        stream = self._streams.get(number)
        if number == 0:
            self._window += more
            for each, waiting in self._streams.items():
                self._send(each, waiting)
        elif stream is not None:
            stream.window += more
            self._send(number, stream)
        if self._window > MAX_WINDOW or (stream is not None and stream.window > MAX_WINDOW):
            raise Http2Error(Code.FLOW_CONTROL_ERROR, "a window that cannot be")

    def _send(self, number: int, stream: _Stream) -> None:
        """As much of the request's body as the windows allow."""
        while stream.unsent:
            size = min(len(stream.unsent), self._max_frame, self._window, stream.window)
            if size <= 0:
                return
            piece, stream.unsent = stream.unsent[:size], stream.unsent[size:]
            self._window -= size
            stream.window -= size
            self._outbox.append(frame(Kind.DATA, 0 if stream.unsent else END_STREAM, number, piece))

    def _reset(self, number: int, code: Code) -> None:
        self._outbox.append(frame(Kind.RST_STREAM, 0, number, code.to_bytes(4)))


_QUICK = {b"\x88": 200, b"\x89": 204} | {
    bytes((kind + index,)) + value: 201
    for kind in (0x00, 0x10, 0x40)
    for index in range(8, 15)
    for value in (b"\x03201", b"\x82\x10\x03")
}
"""How the status of a success begins a header block: indexed, or as a literal (not indexed, never, or to be indexed)
that takes its name from any of the static table's seven, Go's from the last; plain or Huffman-coded."""
