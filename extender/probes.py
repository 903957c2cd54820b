"""/healthz, /readyz and /metrics, on a port of their own and in plain HTTP: for the kubelet and Prometheus."""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

BODY_LIMIT = 1024


class ProbeServer:
    """not_ready: reasons why kube-scheduler's requests would not be decided now; empty: ready.

    exposition: the metrics in Prometheus' text format.
    """

    def __init__(self, not_ready: Callable[[], list[str]], exposition: Callable[[], bytes]) -> None:
        self._not_ready = not_ready
        self._exposition = exposition
        self._runner: web.ServerRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port. Raises OSError when it is taken."""
        self._runner = web.ServerRunner(web.Server(self.handle, access_log=None))
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        return site.port

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="only GET\n")
        if request.path == "/healthz":
            return web.Response(text="ok\n")
        if request.path == "/readyz":
            reasons = self._not_ready()
            if reasons:
                return web.Response(status=503, text="".join(f"not ready: {reason}\n" for reason in reasons))
            return web.Response(text="ok\n")
        if request.path == "/metrics":
            return web.Response(body=self._exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})
        return web.Response(status=404, text="/healthz, /readyz and /metrics are here\n")
