"""`HttpApi`: the `Api` of a real API server, on one aiohttp session.

It adds nothing to the protocol but limits: every wait has a name, every answer a size limit, every failure a
class of `kube.api.errors`. It follows no redirects, uses no proxy of the environment and keeps no cookies.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Self

import msgspec

from kube.api.api import Resource
from kube.api.kubeconfig import MemberCredentials


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one client. Times in seconds, sizes in bytes."""

    call_seconds: float = 10.0
    """One call with all its retries, unless the call says otherwise."""
    connect_seconds: float = 5.0
    """TCP and TLS."""
    watch_seconds: float = 60.0
    """Asked of the server as timeoutSeconds, +-20 % at random; it ends the watch then. Bounds how long a watch can
    hang unnoticed."""
    watch_grace_seconds: float = 10.0
    """Silence past watch_seconds that makes a watch Unreachable."""
    keepalive_seconds: float = 60.0
    """Idle connections live that long; below the server's own 90 s, so that no request meets a closing one."""
    connections: int = 64
    """Most connections for calls (watches have their own). A burst of 500 Bindings queues for these."""
    read_attempts: int = 4
    """Tries of one get, list or read_path answered 429 or 503 with Retry-After, within call_seconds."""
    max_body_bytes: int = 64 << 20
    max_line_bytes: int = 8 << 20


DEFAULT_OPTIONS = ClientOptions()


class HttpApi:
    """Implements `kube.api.api.Api`. Make it with one of the class methods, use it as a context manager:

    async with await HttpApi.in_cluster(user_agent="muster-extender/0.1.0") as api: ...
    """

    @classmethod
    async def from_kubeconfig(
        cls,
        source: str | Path | Mapping[str, Any] | None,
        *,
        user_agent: str,
        context: str = "",
        options: ClientOptions = DEFAULT_OPTIONS,
    ) -> Self:
        """A trusted kubeconfig: path, colon list of paths, or document; None: $KUBECONFIG, else ~/.kube/config.

        Exec plugins and token files work and are refreshed. Raises ConfigRefused with what to do.
        """
        raise NotImplementedError

    @classmethod
    async def in_cluster(cls, *, user_agent: str, options: ClientOptions = DEFAULT_OPTIONS) -> Self:
        """The pod's service account; its token is re-read as it is rotated. Raises ConfigRefused."""
        raise NotImplementedError

    @classmethod
    async def for_member(
        cls, credentials: MemberCredentials, *, user_agent: str, options: ClientOptions = DEFAULT_OPTIONS
    ) -> Self:
        """A member from its validated kubeconfig; addresses are judged again after DNS."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        raise NotImplementedError

    async def __aexit__(self, *exc: object) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def get(
        self, resource: Resource, name: str, namespace: str = "", *, subresource: str = "", timeout: float | None = None
    ) -> bytes:
        raise NotImplementedError

    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
        timeout: float | None = None,
    ) -> bytes:
        raise NotImplementedError

    def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        timeout: float | None = None,
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        raise NotImplementedError

    async def create(
        self,
        resource: Resource,
        body: bytes,
        namespace: str = "",
        *,
        name: str = "",
        subresource: str = "",
        timeout: float | None = None,
    ) -> bytes:
        raise NotImplementedError

    async def replace(
        self,
        resource: Resource,
        name: str,
        body: bytes,
        namespace: str = "",
        *,
        subresource: str = "",
        timeout: float | None = None,
    ) -> bytes:
        raise NotImplementedError

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: bytes,
        namespace: str = "",
        *,
        subresource: str = "",
        timeout: float | None = None,
    ) -> bytes:
        raise NotImplementedError

    async def apply(
        self,
        resource: Resource,
        name: str,
        body: bytes,
        namespace: str = "",
        *,
        subresource: str = "",
        force: bool = True,
        timeout: float | None = None,
    ) -> bytes:
        raise NotImplementedError

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: str = "Background",
        grace_seconds: int | None = None,
        timeout: float | None = None,
    ) -> bytes:
        raise NotImplementedError

    async def read_path(self, path: str, *, accept: str = "application/json", timeout: float | None = None) -> bytes:
        raise NotImplementedError
