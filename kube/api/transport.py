"""HTTP to one API server: connections, deadlines, size limits, renewed credentials, errors. Paths in, bytes out."""

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from random import Random
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from kube.api.addresses import GuardedResolver
from kube.api.backoff import Backoff
from kube.api.connection import Connection
from kube.api.errors import StatusError, TooManyRequests, Unreachable
from kube.api.multiplexed import MultiplexedCalls, NotSpoken
from kube.api.status import error_of

JSON = "application/json"

READ_BUFFER_BYTES = 256 * 1024
"""Per connection, before the server has to wait: a list page comes in few pieces."""


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one client. Times in seconds, sizes in bytes."""

    call_seconds: float = 10.0
    """One call with all its retries and its wait for a connection, unless the call says otherwise."""
    connect_seconds: float = 5.0
    """TCP and TLS."""
    watch_seconds: float = 60.0
    """Asked of the server as timeoutSeconds, +-20 % at random; it ends the watch then. Bounds how long a watch can
    hang unnoticed."""
    watch_grace_seconds: float = 10.0
    """Silence past watch_seconds that makes a watch Unreachable."""
    keepalive_seconds: float = 60.0
    """Idle connections live that long; below the server's own 90 s, so that no request meets a closing one."""
    connections: int = 32
    """Most calls under way at once; more wait their turn. Watches are not counted. A burst of 500 Bindings goes over
    that many connections."""
    read_attempts: int = 4
    """Tries of one get, list or read_path answered 429 or 503 with Retry-After, within call_seconds."""
    multiplex: bool = False
    """Writes share one HTTP/2 connection, where the server speaks it and no proxy is in the way: for bursts of them."""
    max_body_bytes: int = 64 << 20
    max_line_bytes: int = 8 << 20


DEFAULT_OPTIONS = ClientOptions()

BUSY_BACKOFF = Backoff(first=0.1, factor=3.0, cap=5.0)


class Transport:
    """One aiohttp session, opened at first use."""

    def __init__(
        self,
        connection: Connection,
        *,
        user_agent: str,
        options: ClientOptions = DEFAULT_OPTIONS,
        headers: Iterable[tuple[str, str]] = (),
        rng: Random | None = None,
    ) -> None:
        """headers: sent with every request, such as Impersonate-User."""
        self.server = connection.server
        self.options = options
        self.rng = rng or Random()  # noqa: S311 - jitter
        self._connection = connection
        self._user_agent = user_agent
        self._headers = tuple(headers)
        self._turns = asyncio.Semaphore(options.connections)
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._server_hostname = connection.tls_server_name or None
        self._call_timeout = aiohttp.ClientTimeout(total=None, sock_connect=options.connect_seconds)
        self._multiplexed = self._multiplexed_calls() if options.multiplex else None

    async def close(self) -> None:
        """For good: calls from now on are Unreachable."""
        self._closed = True
        if self._multiplexed is not None:
            await self._multiplexed.close()
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connection = self._connection
            connector = aiohttp.TCPConnector(
                limit=0,  # calls are limited by turns, watches are few
                ssl=connection.ssl_context or True,
                keepalive_timeout=self.options.keepalive_seconds,
                resolver=(
                    GuardedResolver(allow_loopback=connection.allow_loopback) if connection.guard_addresses else None
                ),
                socket_factory=_keepalive_socket,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=[
                    ("User-Agent", self._user_agent),
                    ("Accept", JSON),
                    ("Accept-Encoding", "identity"),
                    *self._headers,
                ],
                trust_env=False,
                auto_decompress=False,
                proxy=connection.proxy or None,
                timeout=self._call_timeout,
                read_bufsize=READ_BUFFER_BYTES,
            )
        return self._session

    async def read(self, path: str, *, timeout: float | None, headers: dict[str, str] | None = None) -> bytes:
        """GET, tried again within the time when the server says it is busy."""
        seconds = self.options.call_seconds if timeout is None else timeout
        deadline = asyncio.get_running_loop().time() + seconds
        for attempt in range(1, self.options.read_attempts + 1):
            left = deadline - asyncio.get_running_loop().time()
            try:
                return await self.call("GET", path, timeout=left, headers=dict(headers or {}))
            except TooManyRequests as error:
                pause = BUSY_BACKOFF.delay(attempt, self.rng, error.retry_after)
                if attempt == self.options.read_attempts or pause >= deadline - asyncio.get_running_loop().time():
                    raise
                await asyncio.sleep(pause)
        raise AssertionError("read_attempts is at least 1")

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout: float | None,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        """One request, its answer's body. Raises ApiError."""
        seconds = self.options.call_seconds if timeout is None else timeout
        try:
            if self._multiplexed is not None and body is not None:
                try:
                    async with asyncio.timeout(seconds), self._turns:
                        return await self._call_multiplexed(self._multiplexed, method, path, body, headers or {})
                except NotSpoken:
                    self._multiplexed = None
            async with (
                asyncio.timeout(seconds),
                self._turns,
                await self._send(method, path, body, headers or {}, self._call_timeout) as response,
            ):
                return await _body(response, self.options.max_body_bytes)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise _unreachable(method, self.server, path, error, seconds) from error

    async def _send(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """The response once it is a success; a 401 is tried once more with renewed credentials. Raises StatusError."""
        url = URL(self.server + path, encoded=True)
        authorization = self._connection.authorization
        renewed = False
        while True:
            value = await authorization.current()
            if value:
                headers["Authorization"] = value
            if self._closed:
                raise Unreachable(f"{method} {self.server}: the client is closed")
            response = await self._open().request(
                method,
                url,
                data=body,
                headers=headers,
                allow_redirects=False,
                timeout=timeout,
                server_hostname=self._server_hostname,
            )
            if response.status < 300:
                return response
            try:
                error = await self._refusal(response)
            finally:
                response.release()
            if error.code != 401 or renewed or not await authorization.renewed(value):
                raise error
            renewed = True

    def _multiplexed_calls(self) -> MultiplexedCalls | None:
        connection, url = self._connection, URL(self.server)
        if connection.ssl_context is None or connection.proxy or connection.guard_addresses or not url.host:
            return None
        return MultiplexedCalls(
            url.host,
            url.port or 443,
            connection.ssl_context,
            server_name=connection.tls_server_name,
            connect_seconds=self.options.connect_seconds,
            max_body=self.options.max_body_bytes,
            prepare=lambda transport: _keep_alive(transport.get_extra_info("socket")),
        )

    async def _call_multiplexed(
        self, calls: MultiplexedCalls, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> bytes:
        """As `call`; raises NotSpoken when the server has no HTTP/2."""
        if self._closed:
            raise Unreachable(f"{method} {self.server}: the client is closed")
        fields = [("user-agent", self._user_agent), ("accept", JSON)]
        fields += [(name.lower(), value) for name, value in (*self._headers, *headers.items())]
        path = URL(self.server).raw_path.rstrip("/") + path
        authorization = self._connection.authorization
        renewed = False
        while True:
            value = await authorization.current()
            answer = await calls.call(method, path, [*fields, ("authorization", value)] if value else fields, body)
            if answer.status < 300:
                return answer.body
            error = _error_of(answer.status, answer.body, answer.headers.get("retry-after", ""))
            if error.code != 401 or renewed or not await authorization.renewed(value):
                raise error
            renewed = True

    async def _refusal(self, response: aiohttp.ClientResponse) -> StatusError:
        body = await _body(response, self.options.max_body_bytes) if response.status >= 400 else b""
        return _error_of(response.status, body, response.headers.get("Retry-After", ""))

    @asynccontextmanager
    async def watch(
        self, path: str, silence_seconds: float, headers: dict[str, str] | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Lines of a stream; Unreachable after silence_seconds without a byte."""
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self.options.connect_seconds, sock_read=silence_seconds
        )
        try:
            async with asyncio.timeout(self.options.call_seconds):
                response = await self._send("GET", path, None, dict(headers or {}), timeout)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise _unreachable("WATCH", self.server, path, error, self.options.call_seconds) from error
        try:
            async with aclosing(self._lines(response, path, silence_seconds)) as lines:
                yield lines
        finally:
            response.close()

    async def _lines(
        self, response: aiohttp.ClientResponse, path: str, silence_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        rest = b""
        try:
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line:
                        yield line
                if len(rest) > self.options.max_line_bytes:
                    raise Unreachable(f"WATCH {self.server}{path}: a line of more than {len(rest)} bytes")
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise _unreachable("WATCH", self.server, path, error, silence_seconds) from error


def _error_of(status: int, body: bytes, retry_after: str) -> StatusError:
    if status < 400:
        return error_of(status, b"redirects are not followed: name the API server itself")
    return error_of(status, body, float(retry_after) if retry_after.isdecimal() else None)


async def _body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """All of it, or Unreachable past `limit` bytes: what does not stop is not an API server's answer."""
    length = response.content_length
    if length is not None and length <= limit:
        return await response.read()
    parts = []
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > limit:
            response.close()
            raise Unreachable(f"{response.url.path}: an answer of more than {limit} bytes")
        parts.append(chunk)
    return b"".join(parts)


def _unreachable(method: str, server: str, path: str, error: Exception, seconds: float) -> Unreachable:
    reason = (
        f"no answer within {seconds:.3g} s" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    )
    return Unreachable(f"{method} {server}{path.partition('?')[0]}: {reason}")


def _keepalive_socket(address: tuple[Any, ...]) -> socket.socket:
    """A peer that lost its power is noticed by the kernel within about 30 s, watches included."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    _keep_alive(made)
    return made


def _keep_alive(made: socket.socket) -> None:
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
