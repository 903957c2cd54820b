"""Many small calls at once over one HTTP/2 connection: requests that are made in one turn of the loop leave in one
write, and a burst of 500 Bindings needs one TLS handshake."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

from kube.api.http2_client import Answer, Http2Client
from kube.api.http2_frames import Http2Error

HTTP2, HTTP1 = "h2", "http/1.1"


class NotSpoken(ConnectionError):
    """The server does not speak HTTP/2."""


class _OfferingHttp2:
    """The context that everybody shares, client certificates renewed on it included; only handshakes made through this
    offer HTTP/2, for which the others have no ear."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    def wrap_bio(self, *args: Any, **more: Any) -> ssl.SSLObject:
        self._context.set_alpn_protocols([HTTP2, HTTP1])
        try:
            return self._context.wrap_bio(*args, **more)
        finally:
            self._context.set_alpn_protocols([HTTP1])


class MultiplexedCalls:
    """host, port, tls: of the server. connect_seconds: for TCP and TLS. prepare: told the transport of each connection
    (socket options)."""

    def __init__(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext,
        *,
        server_name: str,
        connect_seconds: float,
        max_body: int,
        prepare: Callable[[asyncio.Transport], None],
    ) -> None:
        self._host, self._port = host, port
        self._tls = cast("ssl.SSLContext", _OfferingHttp2(tls))
        self._server_name = server_name
        self._connect_seconds = connect_seconds
        self._max_body = max_body
        self._prepare = prepare
        self._connecting = asyncio.Lock()
        self._current: _Connection | None = None
        self._open: set[_Connection] = set()

    async def call(self, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> Answer:
        """One request. Raises NotSpoken, or OSError when there is no answer. Cancellation gives the request up, and
        the connection up for later calls: it may be dead."""
        connection = self._current
        if connection is None or not connection.usable:
            connection = await self._connected()
        return await connection.call(method, path, headers, body)

    async def _connected(self) -> "_Connection":
        async with self._connecting:
            if self._current is not None and self._current.usable:
                return self._current
            if self._current is not None:
                self._current.retire()
            async with asyncio.timeout(self._connect_seconds):
                transport, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(f"{self._host}:{self._port}", self._max_body, self._open),
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._server_name or None,
                )
            if transport.get_extra_info("ssl_object").selected_alpn_protocol() != HTTP2:
                transport.abort()
                raise NotSpoken(f"{self._host}:{self._port} does not speak HTTP/2")
            self._prepare(transport)
            self._current = connection
            return connection

    async def close(self) -> None:
        """Calls that are under way end with an error."""
        for connection in list(self._open):
            connection.abort()
        self._current = None
        await asyncio.sleep(0)


class _Connection(asyncio.Protocol):
    def __init__(self, authority: str, max_body: int, open_ones: "set[_Connection]") -> None:
        self._http = Http2Client(authority, max_body=max_body)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._flushing = False
        self._open_ones = open_ones

    @property
    def usable(self) -> bool:
        return self._transport is not None and self._http.may_ask

    async def call(self, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> Answer:
        number = self._http.ask(method, path, headers, body)
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting[number] = answer
        self._flush_soon()
        try:
            return await answer
        finally:
            if self._waiting.pop(number, None) is not None:  # cancelled
                self._http.give_up(number)
                self.retire()

    def retire(self) -> None:
        """No more requests; closed once those under way have ended."""
        self._http.leave()
        self._flush_soon()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._open_ones.add(self)
        self._flush()

    def data_received(self, data: bytes) -> None:
        try:
            events = self._http.receive(data)
        except Http2Error as error:
            self._fail(f"the server broke HTTP/2: {error}")
            self._flush()
            self.abort()
            return
        for event in events:
            answer = self._waiting.pop(event.stream, None)
            if answer is None or answer.done():
                continue
            if isinstance(event, Answer):
                answer.set_result(event)
            else:
                answer.set_exception(ConnectionError(event.why))
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._open_ones.discard(self)
        self._fail(f"the connection was lost: {exc or 'closed by the server'}")

    def _fail(self, why: str) -> None:
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionError(why))

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._transport is None:
            return
        if out := self._http.take():
            self._transport.write(out)
        if self._http.leaving and self._http.idle:
            self._transport.close()
