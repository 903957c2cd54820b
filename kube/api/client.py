"""`HttpApi`: the `Api` of a real API server.

It adds nothing to the protocol but limits: every wait has a name, every answer a size limit, every failure a
class of `kube.api.errors`. It follows no redirects, uses no proxy of the environment and keeps no cookies.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random
from typing import Any, Self
from urllib.parse import quote

import msgspec

from kube.api.api import Resource
from kube.api.config import in_cluster_connection, kubeconfig_connection
from kube.api.connection import Connection, member_connection
from kube.api.kubeconfig import MemberCredentials
from kube.api.transport import DEFAULT_OPTIONS, JSON, ClientOptions, Transport
from kube.objects.names import FIELD_MANAGER

__all__ = ["DEFAULT_OPTIONS", "ClientOptions", "HttpApi"]

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


class HttpApi:
    """Implements `kube.api.api.Api`. Make it with one of the class methods, use it as a context manager:

    async with await HttpApi.in_cluster(user_agent="muster-extender/0.1.0") as api: ...
    """

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
        self._http = Transport(connection, user_agent=user_agent, options=options, headers=headers, rng=rng)

    @classmethod
    async def from_kubeconfig(
        cls,
        source: str | Path | Mapping[str, Any] | None,
        *,
        user_agent: str,
        context: str = "",
        options: ClientOptions = DEFAULT_OPTIONS,
        headers: Iterable[tuple[str, str]] = (),
    ) -> Self:
        """A trusted kubeconfig: path, colon list of paths, or document; None: $KUBECONFIG, else ~/.kube/config.

        Exec plugins and token files work and are refreshed. Raises ConfigRefused with what to do.
        """
        connection = await kubeconfig_connection(source, context)
        return cls(connection, user_agent=user_agent, options=options, headers=headers)

    @classmethod
    async def in_cluster(cls, *, user_agent: str, options: ClientOptions = DEFAULT_OPTIONS) -> Self:
        """The pod's service account; its token is re-read as it is rotated. Raises ConfigRefused."""
        return cls(in_cluster_connection(), user_agent=user_agent, options=options)

    @classmethod
    async def for_member(
        cls,
        credentials: MemberCredentials,
        *,
        user_agent: str,
        options: ClientOptions = DEFAULT_OPTIONS,
        reload: Callable[[], Awaitable[MemberCredentials]] | None = None,
    ) -> Self:
        """A member from its validated kubeconfig; addresses are judged again after DNS. Raises KubeconfigRefused.

        reload: reads the Secret again after a 401; only the token is taken from it.
        """
        return cls(member_connection(credentials, reload), user_agent=user_agent, options=options)

    def __repr__(self) -> str:
        return f"HttpApi({self.server!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.close()

    async def get(
        self, resource: Resource, name: str, namespace: str = "", *, subresource: str = "", timeout: float | None = None
    ) -> bytes:
        return await self._http.read(_path(resource, namespace, name, subresource), timeout=timeout)

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
        query = _selectors(label_selector, field_selector)
        if limit:
            query["limit"] = str(limit)
        if continue_token:
            query["continue"] = continue_token
        return await self._http.read(_path(resource, namespace) + _query(query), timeout=timeout)

    async def read_path(self, path: str, *, accept: str = JSON, timeout: float | None = None) -> bytes:
        return await self._http.read(path, timeout=timeout, headers={"Accept": accept})

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
        return await self._write("POST", _path(resource, namespace, name, subresource), body, JSON, timeout)

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
        return await self._write("PUT", _path(resource, namespace, name, subresource), body, JSON, timeout)

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
        return await self._write("PATCH", _path(resource, namespace, name, subresource), body, MERGE_PATCH, timeout)

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
        query = _query({"fieldManager": FIELD_MANAGER, "force": "true" if force else "false"})
        path = _path(resource, namespace, name, subresource) + query
        return await self._write("PATCH", path, body, APPLY_PATCH, timeout)

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
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        preconditions = {k: v for k, v in (("uid", uid), ("resourceVersion", resource_version)) if v}
        if preconditions:
            options["preconditions"] = preconditions
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        return await self._write(
            "DELETE", _path(resource, namespace, name), msgspec.json.encode(options), JSON, timeout
        )

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
        """timeout: seconds of silence past the server-side timeout; None: watch_grace_seconds."""
        options = self._http.options
        seconds = max(1, round(options.watch_seconds * self._http.rng.uniform(0.8, 1.2)))
        query = _selectors(label_selector, field_selector)
        query |= {
            "watch": "1",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        grace = options.watch_grace_seconds if timeout is None else timeout
        return self._http.watch(_path(resource, namespace) + _query(query), seconds + grace)

    def watch_path(
        self, path: str, *, accept: str = JSON, silence_seconds: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The watch stream of a raw path, whose query says watch=1, in the form of `accept` (server-side tables).

        Unreachable after `silence_seconds` without a byte: give more than the path's timeoutSeconds.
        """
        return self._http.watch(path, silence_seconds, {"Accept": accept})

    async def _write(self, method: str, path: str, body: bytes, content_type: str, timeout: float | None) -> bytes:
        return await self._http.call(method, path, body, timeout=timeout, headers={"Content-Type": content_type})


def _path(resource: Resource, namespace: str = "", name: str = "", subresource: str = "") -> str:
    """Names come from other clusters too: a slash or a dot-dot must not lead anywhere else."""
    return resource.path(quote(namespace, safe=""), quote(name, safe=""), subresource)


def _selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    return {k: v for k, v in (("labelSelector", label_selector), ("fieldSelector", field_selector)) if v}


def _query(parameters: dict[str, str]) -> str:
    """Empty, or ?key=value&..., encoded."""
    return "?" + "&".join(f"{k}={quote(v, safe='')}" for k, v in parameters.items()) if parameters else ""
