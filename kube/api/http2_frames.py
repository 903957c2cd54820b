"""Frames of HTTP/2 (RFC 9113), for both ends of a connection. Pure: bytes in, bytes out."""

import struct
from enum import IntEnum
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_WINDOW = (1 << 31) - 1
DEFAULT_WINDOW = 65_535


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
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Setting(IntEnum):
    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY = 0x20


class Http2Error(Exception):
    """The peer broke the protocol: the connection ends with this code."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


class FrameReader:
    """Puts frames together from pieces. max_frame: bytes of payload that are accepted. preface: comes first."""

    def __init__(self, max_frame: int, preface: bytes = b"") -> None:
        self._max_frame = max_frame
        self._preface = preface
        self._inbox = bytearray()

    def read(self, data: bytes) -> list[Frame]:
        """Raises Http2Error."""
        self._inbox += data
        inbox, at = self._inbox, 0
        if self._preface:
            if not self._preface.startswith(inbox[: len(self._preface)]):
                raise Http2Error(Code.PROTOCOL_ERROR, "no HTTP/2 preface")
            if len(inbox) < len(self._preface):
                return []
            at, self._preface = len(self._preface), b""
        size = len(inbox)
        found = []
        while size - at >= 9:
            length = inbox[at] << 16 | inbox[at + 1] << 8 | inbox[at + 2]
            if length > self._max_frame:
                raise Http2Error(Code.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            end = at + 9 + length
            if size < end:
                break
            stream = int.from_bytes(inbox[at + 5 : at + 9]) & MAX_WINDOW
            found.append(Frame(inbox[at + 3], inbox[at + 4], stream, bytes(inbox[at + 9 : end])))
            at = end
        del inbox[:at]
        return found


def frame(kind: Kind, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack("!BHBBL", len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def settings(values: dict[Setting, int]) -> bytes:
    return frame(Kind.SETTINGS, 0, 0, b"".join(struct.pack("!HL", name, value) for name, value in values.items()))


def window_update(stream: int, more: int) -> bytes:
    return frame(Kind.WINDOW_UPDATE, 0, stream, more.to_bytes(4))


def go_away(last_stream: int, code: Code, message: str = "") -> bytes:
    return frame(Kind.GOAWAY, 0, 0, struct.pack("!LL", last_stream, code) + message.encode())


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """(name, value) pairs; raises Http2Error for values that cannot be."""
    if len(payload) % 6:
        raise Http2Error(Code.FRAME_SIZE_ERROR, "SETTINGS that cannot be")
    found = list(struct.iter_unpack("!HL", payload))
    for name, value in found:
        if name == Setting.INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise Http2Error(Code.FLOW_CONTROL_ERROR, "a window that cannot be")
        if name == Setting.MAX_FRAME_SIZE and not 16_384 <= value < 1 << 24:
            raise Http2Error(Code.PROTOCOL_ERROR, "a frame size that cannot be")
    return found


def unpadded(flags: int, payload: bytes) -> bytes:
    """Of DATA or HEADERS."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Http2Error(Code.PROTOCOL_ERROR, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]


def expect_size(payload: bytes, size: int) -> None:
    if len(payload) != size:
        raise Http2Error(Code.FRAME_SIZE_ERROR, f"a frame of {len(payload)} bytes instead of {size}")


def string(text: str) -> bytes:
    """HPACK (RFC 7541 5.2): not Huffman-coded."""
    data = text.encode()
    if len(data) < 127:
        return bytes((len(data),)) + data
    left, length = len(data) - 127, bytearray(b"\x7f")
    while left >= 128:
        length.append(left % 128 + 128)
        left //= 128
    length.append(left)
    return bytes(length) + data
