"""Reads one kind of objects from one member: as tables made by the server, or as they are."""

from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import quote, urlencode

import msgspec

from dispatcher.kubectl_amc import tables
from dispatcher.kubectl_amc.discovery import Kind
from dispatcher.kubectl_amc.documents import items
from dispatcher.kubectl_amc.reading import ReadApi
from dispatcher.kubectl_amc.tables import Table
from kube.api.errors import NotFound
from kube.objects.meta import Json

PAGE = 500
"""Objects per page, as kubectl's --chunk-size."""

JSON = "application/json"

T = TypeVar("T")


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which objects. names: these; empty: all that the selectors leave."""

    namespace: str
    """"": all namespaces."""
    names: tuple[str, ...] = ()
    label_selector: str = ""
    field_selector: str = ""


class Answer(msgspec.Struct, frozen=True):
    """tables or documents, the names that do not exist, and for a list the resourceVersion to watch from."""

    tables: list[Table] = []
    documents: list[Json] = []
    missing: list[str] = []
    version: str = ""


def url(kind: Kind, query: Query, *, name: str = "", **parameters: str) -> str:
    """Path and query string. Parameters that are "" are left out."""
    path = kind.resource.path(quote(query.namespace, safe=""), quote(name, safe=""))
    given = {key: value for key, value in parameters.items() if value}
    return f"{path}?{urlencode(given)}" if given else path


def list_url(kind: Kind, query: Query, **parameters: str) -> str:
    """For a list, or with watch="1" a watch, of what the selectors leave."""
    return url(kind, query, labelSelector=query.label_selector, fieldSelector=query.field_selector, **parameters)


async def as_tables(api: ReadApi, kind: Kind, query: Query) -> Answer:
    """Raises ApiError; ValueError if the answer is no table."""
    if query.names:
        pages, missing = await _each(
            query.names, lambda name: api.read_path(url(kind, query, name=name), accept=tables.ACCEPT)
        )
        return Answer(tables=[tables.decode(page) for page in pages], missing=missing)
    found: list[Table] = []
    while not found or found[-1].metadata.continue_token:
        token = found[-1].metadata.continue_token if found else ""
        page = list_url(kind, query, limit=str(PAGE), **{"continue": token})
        found.append(tables.decode(await api.read_path(page, accept=tables.ACCEPT)))
    return Answer(tables=found, version=found[-1].metadata.resource_version)


async def as_documents(api: ReadApi, kind: Kind, query: Query) -> Answer:
    """Raises ApiError."""
    if query.names:
        pages, missing = await _each(query.names, lambda name: api.read_path(url(kind, query, name=name)))
        return Answer(documents=[msgspec.json.decode(page) for page in pages], missing=missing)
    found: list[Json] = []
    token = ""
    while True:
        page = list_url(kind, query, limit=str(PAGE), **{"continue": token})
        document = msgspec.json.decode(await api.read_path(page))
        found += items(document)
        metadata = document.get("metadata") or {}
        token = metadata.get("continue", "")
        if not token:
            return Answer(documents=found, version=metadata.get("resourceVersion", ""))


async def _each(names: tuple[str, ...], read: Callable[[str], Awaitable[T]]) -> tuple[list[T], list[str]]:
    """What is there, and the names of what is not."""
    found, missing = [], []
    for name in names:
        try:
            found.append(await read(name))
        except NotFound:
            missing.append(name)
    return found, missing
