"""The extender's server: one TLS port, HTTP/2 or HTTP/1.1 as the client and we agree in the handshake (ALPN)."""

import asyncio
import logging
import ssl
from dataclasses import dataclass

from aiohttp import web

from extender.arrival import ArrivalClock
from extender.http1 import Http1Handler
from extender.http2_protocol import Http2Connections
from extender.logs import line
from extender.metrics import Metrics
from extender.tls import HTTP2, common_name
from extender.verbs import Decisions, Verbs
from kube.api.clock import Clock

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Times in seconds, sizes in bytes."""

    filter_deadline: float
    """A filter or preempt call older than this is answered with an error: nobody waits for the answer any more."""
    body_timeout: float
    """For the whole body of one request to arrive."""
    max_body: int
    backlog: int
    """Connections not yet accepted, and requests open at once on one HTTP/2 connection: above the largest gang."""
    shutdown_timeout: float
    """For replies to be written while stopping."""


class ExtenderServer:
    """client_names: CNs of client certificates that are served; None: no TLS, everybody on this socket is (tests)."""

    def __init__(
        self,
        decisions: Decisions,
        clock: Clock,
        arrivals: ArrivalClock,
        metrics: Metrics,
        limits: ServerLimits,
        *,
        client_names: frozenset[str] | None,
    ) -> None:
        self._limits = limits
        self._verbs = Verbs(
            decisions,
            clock,
            metrics,
            filter_deadline=limits.filter_deadline,
            max_body=limits.max_body,
            client_names=client_names,
        )
        self._http1 = Http1Handler(self._verbs, clock, arrivals, body_timeout=limits.body_timeout)
        self._http2 = Http2Connections(
            self._verbs, clock, arrivals, body_timeout=limits.body_timeout, max_streams=limits.backlog
        )
        self._runner: web.ServerRunner | None = None
        self._listener: asyncio.Server | None = None

    async def start(self, host: str, port: int, context: ssl.SSLContext | None) -> int:
        """Listens; returns the port (useful with port 0). Raises OSError when it is taken."""
        self._runner = web.ServerRunner(self._http1.web_server(), shutdown_timeout=self._limits.shutdown_timeout)
        await self._runner.setup()
        self._listener = await asyncio.get_running_loop().create_server(
            self._protocol, host, port, ssl=context, backlog=self._limits.backlog
        )
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound

    async def stop_accepting(self) -> None:
        """No new connection from here on; those that are open live."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def stop(self) -> None:
        """Ends once replies that are owed have been written (at most shutdown_timeout)."""
        await self.stop_accepting()
        await self._http2.close(self._limits.shutdown_timeout)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _protocol(self) -> asyncio.Protocol:
        return _Greeting(self)

    def chosen(self, transport: asyncio.BaseTransport) -> asyncio.BaseProtocol:
        """Who speaks with a client that has just connected, by what the handshake agreed on."""
        name = common_name(transport.get_extra_info("peercert"))
        if self._verbs.client_names is not None and name not in self._verbs.client_names:
            log.warning(line("refused a client by its certificate", cn=name))
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() == HTTP2:
            return self._http2.protocol(name)
        assert self._runner is not None
        assert self._runner.server is not None
        return self._runner.server()


class _Greeting(asyncio.Protocol):
    """Until the handshake is done nobody knows which protocol it will be."""

    def __init__(self, server: ExtenderServer) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        protocol = self._server.chosen(transport)
        assert isinstance(transport, asyncio.Transport)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
