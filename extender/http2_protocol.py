"""HTTP/2 connections on asyncio transports: filter is answered where it is read, a held bind is a task.

Replies that become ready in one turn of the loop leave in one write: the Bindings of a whole gang end together.
"""

import asyncio
import logging
from collections.abc import Awaitable
from typing import NamedTuple

from extender.arrival import ArrivalClock
from extender.http2 import Cancelled, Ended, Event, Head, Http2Connection, Opened, TooLarge
from extender.logs import line
from extender.verbs import CLIENT_GONE, Reply, Verb, Verbs, text, too_large, too_slow
from kube.api.clock import Clock
from kube.api.http2_frames import Http2Error

log = logging.getLogger(__name__)


class _Request(NamedTuple):
    verb: Verb
    began: float
    arrived: float


class Http2Connections:
    """All of a server. body_timeout: seconds for one body to arrive. max_streams: requests open at once on one."""

    def __init__(
        self, verbs: Verbs, clock: Clock, arrivals: ArrivalClock, *, body_timeout: float, max_streams: int
    ) -> None:
        self.verbs = verbs
        self.clock = clock
        self.arrivals = arrivals
        self.body_timeout = body_timeout
        self.max_streams = max_streams
        self.open: set[Http2Protocol] = set()

    def protocol(self, client_name: str) -> "Http2Protocol":
        return Http2Protocol(self, client_name)

    async def close(self, seconds: float) -> None:
        """Says goodbye on every connection, and closes it when its replies are written or `seconds` are over."""
        tasks = [task for connection in self.open for task in connection.go_away()]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        for connection in list(self.open):
            connection.close()
        held = [task for task in tasks if not task.done()]
        for task in held:
            task.cancel()
        if held:
            await asyncio.wait(held)


class Http2Protocol(asyncio.Protocol):
    """One connection. client_name: CN of the client's certificate."""

    def __init__(self, server: Http2Connections, client_name: str) -> None:
        self._server = server
        self._client_name = client_name
        self._connection = Http2Connection(max_streams=server.max_streams, max_body=server.verbs.max_body)
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._reading: dict[int, _Request] = {}
        """Requests whose body has not arrived."""
        self._held: dict[int, asyncio.Task[None]] = {}
        self._impatience: asyncio.TimerHandle | None = None
        self._flushing = False

    # --- asyncio.Protocol ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.open.add(self)
        self._flush()

    def data_received(self, data: bytes) -> None:
        try:
            events = self._connection.receive(data)
        except Http2Error as error:
            log.warning(line("a client broke HTTP/2", code=error.code.name, err=error))
            self.close()
            return
        if events:
            began, arrived = self._server.clock.monotonic(), self._server.arrivals.stamp()
            for event in events:
                self._happened(event, began, arrived)
            if self._reading and self._impatience is None:
                self._impatience = self._loop.call_later(self._server.body_timeout, self._give_up_bodies)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._server.open.discard(self)
        if self._impatience is not None:
            self._impatience.cancel()
        for number in list(self._reading):
            self._ended(self._reading.pop(number), CLIENT_GONE)
        for task in self._held.values():
            task.cancel()

    # --- the end of it -------------------------------------------------------------------------------------------

    def go_away(self) -> list[asyncio.Task[None]]:
        """No more requests, please; returns what is still held."""
        self._connection.go_away()
        self._flush()
        return list(self._held.values())

    def close(self) -> None:
        """Writes what is ready, then closes."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    # --- requests ------------------------------------------------------------------------------------------------

    def _happened(self, event: Event, began: float, arrived: float) -> None:
        match event:
            case Opened(number, head):
                self._opened(number, head, began, arrived)
            case Ended(number, body):
                request = self._reading.pop(number, None)
                if request is not None:
                    self._asked(number, request, body)
            case TooLarge(number):
                self._answer_unread(number, too_large(self._server.verbs.max_body))
            case Cancelled(number):
                request = self._reading.pop(number, None)
                if request is not None:
                    self._ended(request, CLIENT_GONE)
                elif (task := self._held.get(number)) is not None:
                    task.cancel()

    def _opened(self, number: int, head: Head, began: float, arrived: float) -> None:
        verbs = self._server.verbs
        verb = verbs.get(head.path)
        if verb is None:
            self._write(number, text(404, f"no verb {head.path!r} here: filter, preempt and bind are served"))
            return
        verb.began()
        self._reading[number] = _Request(verb, began, arrived)
        refusal = verbs.refusal(self._client_name, head.method, head.encoding, head.length or 0)
        if refusal is not None:
            self._answer_unread(number, refusal)

    def _asked(self, number: int, request: _Request, body: bytes) -> None:
        answer = self._server.verbs.answer(request.verb, body, request.arrived)
        if isinstance(answer, Reply):
            self._write(number, answer)
            self._ended(request, answer.status)
        else:
            self._held[number] = self._loop.create_task(self._hold(number, request, answer))

    async def _hold(self, number: int, request: _Request, answer: Awaitable[Reply]) -> None:
        status = CLIENT_GONE
        try:
            reply = await answer
            self._write(number, reply)
            self._flush_soon()
            status = reply.status
        finally:
            del self._held[number]
            self._ended(request, status)

    def _answer_unread(self, number: int, reply: Reply) -> None:
        """Without waiting for the body."""
        request = self._reading.pop(number, None)
        if request is not None:
            self._write(number, reply)
            self._ended(request, reply.status)

    def _give_up_bodies(self) -> None:
        self._impatience = None
        now, patience = self._server.clock.monotonic(), self._server.body_timeout
        for number, request in list(self._reading.items()):
            if now - request.began >= patience:
                self._answer_unread(number, too_slow(patience))
        if self._reading:
            oldest = min(request.began for request in self._reading.values())
            self._impatience = self._loop.call_later(max(0.0, oldest + patience - now), self._give_up_bodies)
        self._flush()

    def _ended(self, request: _Request, status: int) -> None:
        request.verb.ended(status, self._server.clock.monotonic() - request.began)

    # --- writing -------------------------------------------------------------------------------------------------

    def _write(self, number: int, reply: Reply) -> None:
        self._connection.reply(number, reply.status, reply.content_type, reply.body)

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._transport is not None and (out := self._connection.take()):
            self._transport.write(out)
