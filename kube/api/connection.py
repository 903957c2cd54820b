"""Where an API server is and how to prove who we are: what `HttpApi` is built from."""

import asyncio
import logging
import os
import ssl
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

from kube.api.errors import ApiError
from kube.api.kubeconfig import ConfigRefused, KubeconfigRefused, MemberCredentials

log = logging.getLogger(__name__)

RELOAD_RETRY_SECONDS = 10.0
"""Pause after credentials could not be renewed."""


class Authorization:
    """The value of the Authorization header ("Bearer ..."), "" for none (client certificate). Never shown.

    reload: makes a new value: (value, seconds until it should be made again; None: only when refused).
    """

    def __init__(
        self,
        value: str = "",
        valid_seconds: float | None = None,
        reload: Callable[[], Awaitable[tuple[str, float | None]]] | None = None,
    ) -> None:
        self._value = value
        self._valid_seconds = valid_seconds
        self._renew_at: float | None = None
        self._reload = reload
        self._lock = asyncio.Lock()

    async def current(self) -> str:
        if self._valid_seconds is not None and self._reload is not None:
            now = asyncio.get_running_loop().time()
            if self._renew_at is None:
                self._renew_at = now + self._valid_seconds
            elif now >= self._renew_at:
                await self._renew(self._value)
        return self._value

    async def renewed(self, refused: str) -> bool:
        """After a 401 for `refused`: whether there is another value to try."""
        if self._value == refused and self._reload is not None:
            await self._renew(refused)
        return self._value != refused

    async def _renew(self, old: str) -> None:
        async with self._lock:
            if self._reload is None or self._value != old:
                return
            valid_seconds: float | None = RELOAD_RETRY_SECONDS
            try:
                self._value, valid_seconds = await self._reload()
            except (ConfigRefused, ApiError) as error:
                # The old value may be good still; if not, the server's 401 is what the caller gets to see.
                log.warning("credentials could not be renewed: %s", error)
            if valid_seconds is not None:
                self._renew_at = asyncio.get_running_loop().time() + valid_seconds
            self._valid_seconds = valid_seconds


class Connection:
    """Not a struct: a default repr would show secrets."""

    def __init__(
        self,
        server: str,
        *,
        ssl_context: ssl.SSLContext | None = None,
        authorization: Authorization | None = None,
        tls_server_name: str = "",
        proxy: str = "",
        guard_addresses: bool = False,
        allow_loopback: bool = True,
    ) -> None:
        """server: URL, may have a path. guard_addresses: judge what DNS says (members)."""
        self.server = server.rstrip("/")
        self.ssl_context = ssl_context
        self.authorization = authorization or Authorization()
        self.tls_server_name = tls_server_name
        self.proxy = proxy
        self.guard_addresses = guard_addresses
        self.allow_loopback = allow_loopback

    def __repr__(self) -> str:
        return f"Connection({self.server!r})"


def member_connection(
    credentials: MemberCredentials, reload: Callable[[], Awaitable[MemberCredentials]] | None = None
) -> Connection:
    """reload: reads the Secret again after a 401; only the token is taken from it. Raises KubeconfigRefused."""
    try:
        context = ssl.create_default_context(cadata=credentials.ca_pem or None)
    except (ssl.SSLError, ValueError) as error:
        raise KubeconfigRefused("certificate-authority-data holds no usable certificate: give PEM, base64") from error
    if credentials.client_cert_pem:
        load_client_certificate(context, credentials.client_cert_pem.encode(), credentials.client_key_pem.encode())

    async def token() -> tuple[str, float | None]:
        assert reload is not None
        return _bearer((await reload()).token), None

    return Connection(
        credentials.server,
        ssl_context=context,
        authorization=Authorization(_bearer(credentials.token), reload=token if reload else None),
        tls_server_name=credentials.tls_server_name,
        guard_addresses=True,
        allow_loopback=credentials.allow_loopback,
    )


def _bearer(token: str) -> str:
    return f"Bearer {token}" if token else ""


def load_client_certificate(context: ssl.SSLContext, cert_pem: bytes, key_pem: bytes) -> None:
    """Python's ssl takes files only; on Linux they never touch a disk. Raises KubeconfigRefused."""
    with ExitStack() as stack:
        paths = []
        for pem in (cert_pem, key_pem):
            if hasattr(os, "memfd_create"):
                descriptor = os.memfd_create("pem")
                stack.callback(os.close, descriptor)
                os.write(descriptor, pem)
                paths.append(f"/proc/self/fd/{descriptor}")
            else:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                path = Path(folder, "pem")
                path.touch(mode=0o600)
                path.write_bytes(pem)
                paths.append(str(path))
        try:
            # A password callback, else OpenSSL asks for an encrypted key's password on the terminal.
            context.load_cert_chain(paths[0], paths[1], password=lambda: b"")
        except (ssl.SSLError, OSError) as error:
            raise KubeconfigRefused(
                "client-certificate-data and client-key-data are no usable pair: give the PEM of a certificate and "
                "its unencrypted key, each base64"
            ) from error
