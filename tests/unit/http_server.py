"""A scripted HTTP server on loopback, for the client's tests: TLS by a throw-away CA, every request recorded."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trustme
from aiohttp import web

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]

CA = trustme.CA()


@dataclass
class Server:
    url: str = ""
    requests: list[Any] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    connections: set[Any] = field(default_factory=set)

    @property
    def last(self) -> Any:
        return self.requests[-1]

    def kubeconfig(self, **user: Any) -> dict[str, Any]:
        return {
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": self.url, "certificate-authority-data": ca_data()}}],
            "users": [{"name": "u", "user": user}],
        }


def ca_data() -> str:
    return base64.b64encode(CA.cert_pem.bytes()).decode()


def client_pair() -> tuple[bytes, bytes]:
    """(certificate, key), PEM."""
    leaf = CA.issue_cert("client.example.com", common_name="muster-extender")
    return b"".join(blob.bytes() for blob in leaf.cert_chain_pems), leaf.private_key_pem.bytes()


@asynccontextmanager
async def serving(answer: Answer, *, demand_client: bool = False) -> AsyncIterator[Server]:
    server = Server()

    async def handle(request: Any) -> web.StreamResponse:
        server.requests.append(request)
        server.connections.add(request.transport)
        server.bodies.append(await request.read())
        return await answer(request)

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    CA.issue_cert("127.0.0.1", "localhost", "api.example.com").configure_cert(context)
    if demand_client:
        context.verify_mode = ssl.CERT_REQUIRED
        CA.configure_trust(context)
    runner = web.ServerRunner(web.Server(handle), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    server.url = f"https://127.0.0.1:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()


def status(code: int, reason: str = "", message: str = "", **headers: str) -> web.Response:
    """A metav1.Status."""
    body = {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code, headers=headers)


async def never() -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError
