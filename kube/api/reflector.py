"""A typed, watch-fed cache of one resource: list in pages, watch from there, never lose a delete.

The cache holds small msgspec structs; handlers get every change in order. What the reflector cannot see
(403, 404, an API server that is away) changes nothing in the cache: absence of news is not news of absence.
"""

import asyncio
from collections.abc import Callable, Iterator
from enum import StrEnum
from random import Random
from typing import Generic, Protocol, TypeVar

from kube.api.api import Api, Resource
from kube.api.clock import Clock
from kube.api.errors import ApiError
from kube.objects.meta import ObjectMeta


class HasMetadata(Protocol):
    metadata: ObjectMeta


T = TypeVar("T", bound=HasMetadata)
Key = tuple[str, str]
"""(namespace, name); namespace is "" for cluster-scoped objects."""


class Change(StrEnum):
    ADDED = "Added"
    MODIFIED = "Modified"
    DELETED = "Deleted"


Handler = Callable[[Change, T | None, T | None], None]
"""(change, old, new). Added: old is None. Deleted: new is None, old is what the cache held (its last state).
Deleted + Added in a row for an object that was made again under its name (another uid)."""


class Reflector(Generic[T]):
    """`run()` belongs in a TaskGroup and returns only by cancellation. Everything else is for the loop's own thread.

    type_: a msgspec struct with `metadata: ObjectMeta`; objects that do not decode into it are reported through
    `on_undecodable` and left as the cache last knew them.
    """

    def __init__(
        self,
        api: Api,
        resource: Resource,
        type_: type[T],
        clock: Clock,
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        page_size: int = 250,
        rng: Random | None = None,
        on_trouble: Callable[[Resource, ApiError | None], None] | None = None,
        on_undecodable: Callable[[Resource, Key, str], None] | None = None,
    ) -> None:
        """on_trouble: called at each failed list or watch, and with None when it works again."""
        self.resource = resource
        self.synced = asyncio.Event()
        """Set after the first complete list and never cleared; `trouble` tells the present."""
        self.trouble: ApiError | None = None
        """The last failure; None while list and watch work."""
        self.restarts = 0
        """Watches that ended in anything but the server's own timeout (EOF early, hang, 410, error)."""
        self.relists = 0
        """Complete lists after the first."""

    def subscribe(self, handler: Handler[T]) -> None:
        """Handlers run synchronously, in order of subscription; one that raises ends `run()` (it is a bug).

        What is cached already is replayed as Added.
        """
        raise NotImplementedError

    def get(self, namespace: str, name: str) -> T | None:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def __iter__(self) -> Iterator[T]:
        """Cached objects. Do not await while iterating: take list(reflector)."""
        raise NotImplementedError

    def last_event_age(self) -> float:
        """Seconds since the server was last heard of (list, event or bookmark); inf before the first list."""
        raise NotImplementedError

    async def run(self) -> None:
        raise NotImplementedError
