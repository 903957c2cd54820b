"""The extender's HTTP server: kube-scheduler's requests in, answers out.

A decided answer is always HTTP 200 with the reason in the body: kube-scheduler reads no other body. Other statuses are
for callers that have no business here or speak another protocol. The low-level aiohttp server, because routing and
middlewares would cost as much as a whole filter.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
from aiohttp import web

from extender import wire
from extender.arrival import ArrivalClock
from extender.core import FilterAnswer
from extender.logs import line
from extender.metrics import Metrics
from extender.tls import common_name
from kube.api.clock import Clock
from kube.objects.pods import Pod

log = logging.getLogger(__name__)
T = TypeVar("T")

KEEPALIVE_SECONDS = 120.0
"""Above Go's 90 s idle timeout: whoever closes an idle connection first must not be us (golang/go#22158)."""


class Decisions(Protocol):
    """Who decides: `extender.effects_runner.EffectsRunner`."""

    def filter(self, pod: Pod, node_names: Sequence[str]) -> FilterAnswer: ...

    def preempt(
        self, pod: Pod, victims: Mapping[str, tuple[Sequence[str], int]]
    ) -> Mapping[str, tuple[Sequence[str], int]]: ...

    async def bind(self, args: wire.ExtenderBindingArgs, arrived: float) -> str:
        """Held until decided; "" is success, else the reason. Cancellation means that the caller has gone."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Times in seconds, sizes in bytes."""

    filter_deadline: float
    """A filter or preempt call older than this is answered with an error: nobody waits for the answer any more."""
    body_timeout: float
    """For the whole body of one request to arrive."""
    max_body: int
    backlog: int
    shutdown_timeout: float
    """For replies to be written while stopping."""


class _Verb:
    """One verb with its series at hand: looking a label up costs more than counting."""

    __slots__ = ("answer", "answered", "in_flight", "name", "seconds")

    def __init__(self, name: str, answer: Callable[[bytes, float], Awaitable[bytes]], metrics: Metrics) -> None:
        self.name = name
        self.answer = answer
        self.in_flight = metrics.in_flight.labels(name)
        self.seconds = metrics.request_seconds.labels(name)
        self.answered = metrics.requests.labels(name, "200")


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
        self._decisions = decisions
        self._clock = clock
        self._arrivals = arrivals
        self._metrics = metrics
        self._limits = limits
        self._client_names = client_names
        self._runner: web.ServerRunner | None = None
        self._site: web.TCPSite | None = None
        self._verbs = {
            "/filter": _Verb("filter", self._filter, metrics),
            "/preempt": _Verb("preempt", self._preempt, metrics),
            "/bind": _Verb("bind", self._bind, metrics),
        }

    async def start(self, host: str, port: int, context: ssl.SSLContext | None) -> int:
        """Listens; returns the port (useful with port 0). Raises OSError when it is taken."""
        self._runner = web.ServerRunner(self.web_server(), shutdown_timeout=self._limits.shutdown_timeout)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, host, port, ssl_context=context, backlog=self._limits.backlog)
        await self._site.start()
        bound = self._site.port
        return bound

    async def stop_accepting(self) -> None:
        """No new connection from here on; those that are open live."""
        if self._site is not None:
            await self._site.stop()
            self._site = None

    async def stop(self) -> None:
        """Ends once replies that are owed have been written (at most shutdown_timeout)."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def web_server(self) -> web.Server:
        return web.Server(
            self.handle,
            request_factory=partial(_request, self._limits.max_body),
            # A client that went away cancels its held bind; commits run in tasks of their own.
            handler_cancellation=True,
            keepalive_timeout=KEEPALIVE_SECONDS,
            auto_decompress=False,
            access_log=None,
        )

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        verb = self._verbs.get(request.path)
        if verb is None:
            return _text(404, f"no verb {request.path!r} here: filter, preempt and bind are served")
        began = self._clock.monotonic()
        arrived = self._arrivals.stamp()
        verb.in_flight.inc()
        code = 499  # the client went away
        try:
            reply = self._refusal(request) or await self._answer(request, verb.answer, arrived)
            code = reply.status
            return reply
        finally:
            verb.in_flight.dec()
            verb.seconds.observe(self._clock.monotonic() - began)
            (verb.answered if code == 200 else self._metrics.requests.labels(verb.name, str(code))).inc()

    def _refusal(self, request: web.BaseRequest) -> web.Response | None:
        """What can be said without reading the body."""
        if self._client_names is not None:
            peer = request.transport.get_extra_info("peercert") if request.transport is not None else None
            if (name := common_name(peer)) not in self._client_names:
                log.warning(line("refused a client by its certificate", cn=name))
                return _text(403, f"client certificate {name!r} is not the scheduler's (--client-name)")
        if request.method != "POST":
            return _text(405, "only POST")
        if request.headers.get("Content-Encoding", "identity") != "identity":
            return _text(415, "bodies must not be compressed")
        if (request.content_length or 0) > self._limits.max_body:
            return _text(413, f"the body is above {self._limits.max_body} bytes")
        return None

    async def _answer(
        self, request: web.BaseRequest, answer: Callable[[bytes, float], Awaitable[bytes]], arrived: float
    ) -> web.Response:
        try:
            async with asyncio.timeout(self._limits.body_timeout):
                body = await request.read()
        except TimeoutError:
            return _text(408, f"the body did not arrive within {self._limits.body_timeout} s")
        except web.HTTPRequestEntityTooLarge:
            return _text(413, f"the body is above {self._limits.max_body} bytes")
        try:
            return web.Response(body=await answer(body, arrived), content_type="application/json")
        except msgspec.DecodeError as problem:
            return _text(400, f"not an extender/v1 request: {problem}")
        except RecursionError:
            return _text(400, "not an extender/v1 request: nested too deeply")

    async def _filter(self, body: bytes, arrived: float) -> bytes:
        args = wire.decode_filter(body)
        if late := self._late(arrived):
            return wire.encode(wire.ExtenderFilterResult(error=late))
        answer = self._decisions.filter(args.pod, args.offered())
        result = wire.ExtenderFilterResult(
            node_names=answer.node_names,
            failed_nodes=answer.failed,
            failed_and_unresolvable_nodes=answer.unresolvable,
            error=answer.error,
        )
        if args.node_names is None and args.nodes is not None:
            result.node_names = None
            result.nodes = wire.NodesReply(items=args.nodes.named(answer.node_names))
        return wire.encode(result)

    async def _preempt(self, body: bytes, arrived: float) -> bytes:
        args = wire.decode_preemption(body)
        candidates = args.candidates()
        if self._late(arrived):
            return wire.encode(wire.ExtenderPreemptionResult())  # there is no error here: a veto
        kept = self._decisions.preempt(
            args.pod, {node: (victims.uids(), victims.num_pdb_violations) for node, victims in candidates.items()}
        )
        return wire.encode(
            wire.ExtenderPreemptionResult(
                node_name_to_meta_victims={
                    node: wire.MetaVictims(pods=[wire.MetaPod(uid=uid) for uid in uids], num_pdb_violations=violations)
                    for node, (uids, violations) in kept.items()
                }
            )
        )

    async def _bind(self, body: bytes, arrived: float) -> bytes:
        error = await self._decisions.bind(wire.decode_binding(body), arrived)
        return wire.encode(wire.ExtenderBindingResult(error=error))

    def _late(self, arrived: float) -> str:
        if self._clock.monotonic() - arrived > self._limits.filter_deadline:
            return "the extender was too slow, ask again"
        return ""


def _request(max_body: int, *args: Any) -> web.BaseRequest:
    message, payload, protocol, writer, task = args
    return web.BaseRequest(
        message, payload, protocol, writer, task, asyncio.get_running_loop(), client_max_size=max_body
    )


def _text(status: int, message: str) -> web.Response:
    return web.Response(status=status, text=message + "\n")
