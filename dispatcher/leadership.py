"""Only the leader writes: an `Api` that asks the lease before each write (rule 10).

Safety does not rest on it (every decision is a conditional PUT, every member object carries its epoch); it keeps a
dispatcher that was stopped and continued from making noise.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from kube.api.api import Api, Resource
from kube.api.errors import ApiError


class NotLeading(ApiError):
    """The write was not sent: the lease is no longer ours."""


class LeadersApi:
    """Implements `kube.api.api.Api`. Reads always pass."""

    def __init__(self, api: Api, leading: Callable[[], bool]) -> None:
        self._api = api
        self._leading = leading

    def _check(self, verb: str, resource: Resource) -> None:
        if not self._leading():
            raise NotLeading(f"{verb} {resource.plural}: this dispatcher does not lead any more")

    async def get(
        self, resource: Resource, name: str, namespace: str = "", *, subresource: str = "", timeout: float | None = None
    ) -> bytes:
        return await self._api.get(resource, name, namespace, subresource=subresource, timeout=timeout)

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
        return await self._api.list(
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            limit=limit,
            continue_token=continue_token,
            timeout=timeout,
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
        return self._api.watch(
            resource,
            namespace,
            resource_version=resource_version,
            label_selector=label_selector,
            field_selector=field_selector,
            timeout=timeout,
        )

    async def read_path(self, path: str, *, accept: str = "application/json", timeout: float | None = None) -> bytes:
        return await self._api.read_path(path, accept=accept, timeout=timeout)

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
        self._check("create", resource)
        return await self._api.create(resource, body, namespace, name=name, subresource=subresource, timeout=timeout)

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
        self._check("replace", resource)
        return await self._api.replace(resource, name, body, namespace, subresource=subresource, timeout=timeout)

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
        self._check("patch", resource)
        return await self._api.patch(resource, name, body, namespace, subresource=subresource, timeout=timeout)

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
        self._check("apply", resource)
        return await self._api.apply(
            resource, name, body, namespace, subresource=subresource, force=force, timeout=timeout
        )

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
        self._check("delete", resource)
        return await self._api.delete(
            resource,
            name,
            namespace,
            uid=uid,
            resource_version=resource_version,
            propagation=propagation,
            grace_seconds=grace_seconds,
            timeout=timeout,
        )
