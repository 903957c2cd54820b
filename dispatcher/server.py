"""/healthz, /readyz and /metrics on a plain port. Says nothing that a stranger may not know."""

from collections.abc import Callable

from aiohttp import web

from dispatcher.metrics import Metrics

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class StatusServer:
    """not_ready(): "" when ready, else why not."""

    def __init__(self, listen: str, metrics: Metrics, not_ready: Callable[[], str]) -> None:
        host, _, port = listen.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._metrics = metrics
        self._not_ready = not_ready
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> "StatusServer":
        app = web.Application(client_max_size=1024)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._serve_metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n", headers=HEADERS)

    async def _readyz(self, _: web.Request) -> web.Response:
        why = self._not_ready()
        return web.Response(text=f"{why or 'ok'}\n", status=503 if why else 200, headers=HEADERS)

    async def _serve_metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.text(), headers={**HEADERS, "Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )
