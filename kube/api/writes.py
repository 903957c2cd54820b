"""Writes that both programs need, on top of `Api`: create or read, replace with retry, delete what may be gone.

Decisions and fenced objects go through here (POST, PUT with resourceVersion); server-side apply is for what may be
overwritten. A body is a struct with `metadata: ObjectMeta`, or a JSON document; name and namespace are taken from it.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from kube.api.api import Api, Resource
from kube.api.errors import AlreadyExists, Conflict, NotFound

T = TypeVar("T")

CREATE_ATTEMPTS = 3
"""Rounds of create, AlreadyExists, NotFound: somebody deletes it as fast as we look."""

_encode = msgspec.json.Encoder().encode


class _Meta(msgspec.Struct):
    name: str = ""
    namespace: str = ""


class _Named(msgspec.Struct):
    metadata: _Meta


def _name_and_namespace(encoded: bytes) -> tuple[str, str]:
    meta = msgspec.json.decode(encoded, type=_Named).metadata
    return meta.name, meta.namespace


async def read(
    api: Api, resource: Resource, type_: type[T], name: str, namespace: str = "", *, timeout: float | None = None
) -> T | None:
    """The object decoded, None if there is none. Raises ApiError."""
    try:
        return msgspec.json.decode(await api.get(resource, name, namespace, timeout=timeout), type=type_)
    except NotFound:
        return None


async def create_or_read(api: Api, resource: Resource, body: T, *, timeout: float | None = None) -> tuple[T, bool]:
    """(object, True) if this call made it, (the one that is there, False) on AlreadyExists: compare id and epoch.

    Raises ApiError. After an error that leaves it open whether it was made (`uncertain`), call again and compare.
    """
    encoded = _encode(body)
    name, namespace = _name_and_namespace(encoded)
    for attempt in range(CREATE_ATTEMPTS):
        try:
            made = await api.create(resource, encoded, namespace, timeout=timeout)
            return msgspec.json.decode(made, type=type(body)), True
        except AlreadyExists:
            there = await read(api, resource, type(body), name, namespace, timeout=timeout)
            if there is not None:
                return there, False
            if attempt == CREATE_ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


async def replace(api: Api, resource: Resource, body: T, *, subresource: str = "", timeout: float | None = None) -> T:
    """PUT once; body carries the resourceVersion it was decided on. Raises Conflict, NotFound, ApiError."""
    encoded = _encode(body)
    name, namespace = _name_and_namespace(encoded)
    answer = await api.replace(resource, name, encoded, namespace, subresource=subresource, timeout=timeout)
    return msgspec.json.decode(answer, type=type(body))


async def update(
    api: Api,
    resource: Resource,
    type_: type[T],
    mutate: Callable[[T], T | None],
    *,
    name: str,
    namespace: str = "",
    subresource: str = "",
    attempts: int = 5,
    timeout: float | None = None,
) -> T:
    """Read, `mutate`, PUT; again with a fresh read on Conflict, `attempts` times in all.

    mutate is pure and decides anew each time; None means nothing to do. type_ must keep the whole object: our own
    kinds, or `dict` for foreign ones. Returns the object as it is now. Raises NotFound, Conflict, ApiError.
    """
    for attempt in range(attempts):
        current = msgspec.json.decode(await api.get(resource, name, namespace, timeout=timeout), type=type_)
        wanted = mutate(current)
        if wanted is None:
            return current
        try:
            return await replace(api, resource, wanted, subresource=subresource, timeout=timeout)
        except Conflict:
            if attempt == attempts - 1:
                raise
    raise AssertionError("unreachable")


async def apply(api: Api, resource: Resource, body: T, *, subresource: str = "", timeout: float | None = None) -> T:
    """Server-side apply as field manager `muster`, forced. body holds only the fields that are ours."""
    encoded = _encode(body)
    name, namespace = _name_and_namespace(encoded)
    answer = await api.apply(resource, name, encoded, namespace, subresource=subresource, timeout=timeout)
    return msgspec.json.decode(answer, type=type(body))


async def delete_if_there(
    api: Api,
    resource: Resource,
    name: str,
    namespace: str = "",
    *,
    uid: str = "",
    resource_version: str = "",
    timeout: float | None = None,
) -> bool:
    """False if it was gone already. Raises Conflict when a precondition does not hold."""
    try:
        await api.delete(resource, name, namespace, uid=uid, resource_version=resource_version, timeout=timeout)
    except NotFound:
        return False
    return True
