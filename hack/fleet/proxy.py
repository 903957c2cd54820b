"""The link proxy: one TCP listener per link of the fleet (hack/fleet/layout.py), each of which can be broken.

`open` forwards. `cut` closes what is open and refuses what comes (connection reset). `hang` accepts and keeps
connections but moves no byte, as a network does that drops packets. One process per fleet, told by JSON lines on a
loopback control port: {"token", "link", "mode"} -> {"ok"} or {"error"}; {"token"} alone -> {"links": {name: mode}}.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

OPEN, CUT, HANG = "open", "cut", "hang"
MODES = (OPEN, CUT, HANG)


class LinkConfig(msgspec.Struct, frozen=True):
    name: str
    listen: int
    target: int


class ProxyConfig(msgspec.Struct, frozen=True):
    control: int
    token: str
    links: tuple[LinkConfig, ...]


class _Pipe(asyncio.Protocol):
    """One end of a forwarded connection."""

    def __init__(self, link: "_Link", peer: "_Pipe | None" = None) -> None:
        self.link = link
        self.peer = peer
        self.transport: asyncio.Transport | None = None
        self.early: list[bytes] = []
        """What the client sent before the server's end was connected."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.link.pipes.add(self)
        if self.peer is None:  # the client's end: dial the server
            if self.link.mode == CUT:
                transport.abort()
                return
            self.peer = _Pipe(self.link, self)
            self.link.dial(self.peer)
        else:
            for chunk in self.peer.early:
                transport.write(chunk)
            self.peer.early.clear()
        if self.link.mode == HANG:
            transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.write(data)
        else:
            self.early.append(data)

    def eof_received(self) -> bool:
        if self.peer is not None and self.peer.transport is not None and self.peer.transport.can_write_eof():
            self.peer.transport.write_eof()
            return True  # half-closed: the answer may still come
        return False

    def pause_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.link.mode == OPEN and self.peer is not None and self.peer.transport is not None:
            self.peer.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.link.pipes.discard(self)
        if self.peer is not None and self.peer.transport is not None:
            if exc is None:
                self.peer.transport.close()
            else:
                self.peer.transport.abort()


class _Link:
    def __init__(self, config: LinkConfig, tasks: asyncio.TaskGroup) -> None:
        self.config = config
        self.mode = OPEN
        self.pipes: set[_Pipe] = set()
        self._tasks = tasks

    async def listen(self) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: _Pipe(self), "127.0.0.1", self.config.listen, backlog=1024)

    def dial(self, pipe: _Pipe) -> None:
        self._tasks.create_task(self._dial(pipe))

    async def _dial(self, pipe: _Pipe) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: pipe, "127.0.0.1", self.config.target)
        except OSError:
            if pipe.peer is not None and pipe.peer.transport is not None:
                pipe.peer.transport.abort()  # as if nobody listened

    def set_mode(self, mode: str) -> None:
        self.mode = mode
        for pipe in list(self.pipes):
            if pipe.transport is None:
                continue
            if mode == CUT:
                pipe.transport.abort()
            elif mode == HANG:
                pipe.transport.pause_reading()
            else:
                pipe.transport.resume_reading()


async def _control(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, links: dict[str, _Link], token: str
) -> None:
    try:
        while line := await reader.readline():
            writer.write(json.dumps(_answer(line, links, token)).encode() + b"\n")
            await writer.drain()
    except ConnectionError:
        pass  # the asker went away
    finally:
        writer.close()


def _answer(line: bytes, links: dict[str, _Link], token: str) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except ValueError as error:
        return {"error": f"not JSON: {error}"}
    if not isinstance(request, dict) or request.get("token") != token:
        return {"error": "wrong token"}
    name, mode = request.get("link"), request.get("mode")
    if name is None:
        return {"links": {link.config.name: link.mode for link in links.values()}}
    if name not in links or mode not in MODES:
        return {"error": f"no link {name!r} or no mode {mode!r}"}
    links[name].set_mode(mode)
    return {"ok": True}


async def serve(config: ProxyConfig) -> None:
    """Runs until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        links = {link.name: _Link(link, tasks) for link in config.links}
        for link in links.values():
            await link.listen()
        # Last: whoever can reach the control port can rely on the links.
        control = await asyncio.start_server(
            lambda r, w: _control(r, w, links, config.token), "127.0.0.1", config.control
        )
        await control.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=ProxyConfig)))
