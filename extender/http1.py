"""HTTP/1.1, for callers that do not speak HTTP/2 (and for kube-scheduler with DISABLE_HTTP2 set).

The low-level aiohttp server, because routing and middlewares would cost as much as a whole filter.
"""

import asyncio
from functools import partial
from typing import Any

from aiohttp import web

from extender.arrival import ArrivalClock
from extender.tls import common_name
from extender.verbs import CLIENT_GONE, Reply, Verb, Verbs, text, too_large, too_slow
from kube.api.clock import Clock

KEEPALIVE_SECONDS = 120.0
"""Above Go's 90 s idle timeout: whoever closes an idle connection first must not be us (golang/go#22158)."""


class Http1Handler:
    """body_timeout: seconds for one body to arrive."""

    def __init__(self, verbs: Verbs, clock: Clock, arrivals: ArrivalClock, *, body_timeout: float) -> None:
        self._verbs = verbs
        self._clock = clock
        self._arrivals = arrivals
        self._body_timeout = body_timeout

    def web_server(self) -> web.Server:
        return web.Server(
            self._handle,
            request_factory=partial(_request, self._verbs.max_body),
            # A client that went away cancels its held bind; commits run in tasks of their own.
            handler_cancellation=True,
            keepalive_timeout=KEEPALIVE_SECONDS,
            auto_decompress=False,
            access_log=None,
        )

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        verb = self._verbs.get(request.path)
        if verb is None:
            return _response(text(404, f"no verb {request.path!r} here: filter, preempt and bind are served"))
        began = self._clock.monotonic()
        arrived = self._arrivals.stamp()
        verb.began()
        status = CLIENT_GONE
        try:
            reply = self._refusal(request) or await self._answer(request, verb, arrived)
            status = reply.status
            return _response(reply)
        finally:
            verb.ended(status, self._clock.monotonic() - began)

    def _refusal(self, request: web.BaseRequest) -> Reply | None:
        peer = request.transport.get_extra_info("peercert") if request.transport is not None else None
        encoding = request.headers.get("Content-Encoding", "identity")
        return self._verbs.refusal(common_name(peer), request.method, encoding, request.content_length or 0)

    async def _answer(self, request: web.BaseRequest, verb: Verb, arrived: float) -> Reply:
        try:
            async with asyncio.timeout(self._body_timeout):
                body = await request.read()
        except TimeoutError:
            return too_slow(self._body_timeout)
        except web.HTTPRequestEntityTooLarge:
            return too_large(self._verbs.max_body)
        answer = self._verbs.answer(verb, body, arrived)
        return answer if isinstance(answer, Reply) else await answer


def _request(max_body: int, *args: Any) -> web.BaseRequest:
    message, payload, protocol, writer, task = args
    return web.BaseRequest(
        message, payload, protocol, writer, task, asyncio.get_running_loop(), client_max_size=max_body
    )


def _response(reply: Reply) -> web.Response:
    response = web.Response(status=reply.status, body=reply.body)
    response.headers["Content-Type"] = reply.content_type
    return response
