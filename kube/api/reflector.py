"""A typed, watch-fed cache of one resource: list in pages, watch from there, never lose a delete.

What the reflector cannot see (403, 404, an API server that is away) changes nothing in the cache: absence of news
is not news of absence. After client-go tools/cache/reflector.go and kopf's watching, with two additions: objects
that vanished unseen are found at every relist, and a server whose versions went back (etcd restored from a backup) is
noticed before a watch is resumed on it. A restored server that has overtaken our version before we come back cannot be
noticed: restore with `etcdutl snapshot restore --bump-revision --mark-compacted`, which answers every old watch 410.
"""

import asyncio
import math
from collections.abc import Callable, Iterator
from random import Random
from typing import Generic, TypeVar

import msgspec

from kube.api import documents
from kube.api.api import Api, Resource
from kube.api.backoff import Backoff
from kube.api.cache import Change, Handler, HasMetadata, Key, ObjectCache
from kube.api.clock import Clock
from kube.api.errors import ApiError, StatusError, TooManyRequests, Unreachable
from kube.api.status import error_of
from kube.objects.meta import ObjectMeta

__all__ = ["Change", "Handler", "HasMetadata", "Key", "Reflector"]

T = TypeVar("T", bound=HasMetadata)

EVENTS_PER_TURN = 100
"""Watch lines handled before other tasks get a turn, so that a flood of buffered events does not hold the loop."""

STEADY_SECONDS = 5.0
"""A watch that lived this long was a good one: the next starts without delay."""

RESTART_BACKOFF = Backoff(first=0.2, factor=2.0, cap=15.0)


class Reflector(Generic[T]):
    """`run()` belongs in a TaskGroup and returns only by cancellation. Everything else is for the loop's own thread.

    type_: a msgspec struct with `metadata: ObjectMeta`. An object that does not decode into it is reported through
    `on_undecodable` and left as the cache last knew it.
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
        backoff: Backoff = RESTART_BACKOFF,
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
        """Watches that ended in anything but the server's own end of stream (hang, cut, 410, error)."""
        self.relists = 0
        """Complete lists after the first."""
        self._api = api
        self._clock = clock
        self._namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._page_size = page_size
        self._backoff = backoff
        self._rng = rng or Random()  # noqa: S311 - jitter
        self._on_trouble = on_trouble
        self._on_undecodable = on_undecodable
        self._cache: ObjectCache[T] = ObjectCache()
        self._object = msgspec.json.Decoder(type_)
        self._page: msgspec.json.Decoder[documents.Page[T]] = msgspec.json.Decoder(documents.Page[type_])  # type: ignore[valid-type]
        self._version = ""
        """Where the watch resumes; "" before the first list."""
        self._heard = -math.inf

    def subscribe(self, handler: Handler[T]) -> None:
        """Handlers run synchronously, in order of subscription; one that raises ends `run()` (it is a bug).

        What is cached already is replayed as Added.
        """
        self._cache.subscribe(handler)

    def get(self, namespace: str, name: str) -> T | None:
        return self._cache.get((namespace, name))

    def __len__(self) -> int:
        return len(self._cache)

    def __iter__(self) -> Iterator[T]:
        """Cached objects. Do not await while iterating: take list(reflector)."""
        return iter(self._cache)

    def last_event_age(self) -> float:
        """Seconds since the server was last heard of (list, event or bookmark); inf before the first list."""
        return self._clock.monotonic() - self._heard

    async def run(self) -> None:
        failures = 0
        listed = False
        doubtful = False
        """The last watch broke or brought nothing at all: see whether the server still counts on from our version."""
        while True:
            began = self._clock.monotonic()
            try:
                if not listed:
                    await self._list()
                    listed, doubtful = True, False
                if doubtful:
                    listed = await self._counts_on()
                    if not listed:
                        continue
                lines = await self._watch()
                steady = self._clock.monotonic() - began >= STEADY_SECONDS
                failures = 0 if steady else 1 if lines else failures + 1
                doubtful = lines == 0
            except ApiError as error:
                failures = failures + 1 if self._clock.monotonic() - began < STEADY_SECONDS else 1
                doubtful = True
                if isinstance(error, StatusError) and not isinstance(error, TooManyRequests):
                    # 410 and every answer we do not understand: begin anew. 403 and 404 come by here too, at the
                    # pace of the back-off.
                    listed = False
                self._failed(error)
            if failures:
                retry_after = self.trouble.retry_after if isinstance(self.trouble, StatusError) else None
                await self._clock.sleep(self._backoff.delay(failures, self._rng, retry_after))

    async def _list(self) -> None:
        """Take over a complete list. What the cache has and the list has not is deleted, last of all: in between
        the cache shows rather too much used than too little."""
        seen: set[Key] = set()
        complete = True
        version = token = ""
        while True:
            body = await self._api.list(
                self.resource,
                self._namespace,
                label_selector=self._label_selector,
                field_selector=self._field_selector,
                limit=self._page_size,
                continue_token=token,
            )
            meta, objects, undecodable = self._decode_page(body)
            for obj in objects:
                seen.add(obj.metadata.key)
                self._cache.put(obj, from_watch=False)
            for metadata in undecodable:
                if metadata is None:
                    complete = False
                    continue
                seen.add(metadata.key)
                cached = self._cache.get(metadata.key)
                if cached is not None and cached.metadata.uid != metadata.uid:
                    self._cache.drop(metadata.key)
            version = version or meta.resource_version
            token = meta.continue_token
            self._heard = self._clock.monotonic()
            await asyncio.sleep(0)
            if not token:
                break
        if complete:
            gone = self._cache.missing_from(seen)
            for start in range(0, len(gone), self._page_size):
                for key in gone[start : start + self._page_size]:
                    self._cache.drop(key)
                await asyncio.sleep(0)
        self._version = version
        if self.synced.is_set():
            self.relists += 1
        self.synced.set()

    def _decode_page(self, body: bytes) -> tuple[documents.ListMeta, list[T], list[ObjectMeta | None]]:
        """(list metadata, objects, metadata of those that do not decode; None: not even that)."""
        try:
            page = self._page.decode(body)
        except msgspec.ValidationError:
            pass
        except msgspec.DecodeError as error:
            raise Unreachable(f"list of {self.resource.plural}: not an API server's answer: {error}") from error
        else:
            return page.metadata, page.items or [], []
        raw = _decode(documents.raw_page, body, self.resource)
        objects: list[T] = []
        bad: list[ObjectMeta | None] = []
        for item in raw.items or ():
            try:
                objects.append(self._object.decode(item))
            except msgspec.ValidationError as error:
                bad.append(self._undecodable(item, error))
        return raw.metadata, objects, bad

    async def _counts_on(self) -> bool:
        """Whether the server's versions have reached ours: not so after its etcd was restored from a backup. A watch
        from a version of the future would stay silent and lose what happens until that version comes."""
        body = await self._api.list(
            self.resource,
            self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            limit=1,
        )
        now = _decode(documents.raw_page, body, self.resource).metadata.resource_version
        self._heard = self._clock.monotonic()
        return not (now.isdecimal() and self._version.isdecimal() and int(now) < int(self._version))

    async def _watch(self) -> int:
        """One watch to its end; the number of lines it brought. Raises ApiError (Gone: list again)."""
        count = 0
        async with self._api.watch(
            self.resource,
            self._namespace,
            resource_version=self._version,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
        ) as lines:
            self._works()
            async for line in lines:
                count += 1
                self._heard = self._clock.monotonic()
                self._handle(line)
                if count % EVENTS_PER_TURN == 0:
                    await asyncio.sleep(0)
        return count

    def _handle(self, line: bytes) -> None:
        event = _decode(documents.watch_event, line, self.resource)
        if event.type == "ERROR":
            raise error_of(0, bytes(event.object))
        if event.type in ("ADDED", "MODIFIED"):
            try:
                obj = self._object.decode(event.object)
            except msgspec.ValidationError as error:
                metadata = self._undecodable(event.object, error)
            else:
                self._cache.put(obj, from_watch=True)
                metadata = obj.metadata
        else:
            metadata = _decode(documents.metadata_only, event.object, self.resource).metadata
            if event.type == "DELETED":
                self._cache.delete(metadata)
        if metadata is not None:
            self._version = metadata.resource_version or self._version

    def _undecodable(self, raw: msgspec.Raw, error: msgspec.ValidationError) -> ObjectMeta | None:
        try:
            metadata = documents.metadata_only.decode(raw).metadata
        except msgspec.ValidationError:
            metadata = None
        if self._on_undecodable is not None:
            self._on_undecodable(self.resource, metadata.key if metadata else ("", ""), str(error))
        return metadata

    def _works(self) -> None:
        if self.trouble is not None:
            self.trouble = None
            if self._on_trouble is not None:
                self._on_trouble(self.resource, None)

    def _failed(self, error: ApiError) -> None:
        self.restarts += 1
        self.trouble = error
        if self._on_trouble is not None:
            self._on_trouble(self.resource, error)


D = TypeVar("D")


def _decode(decoder: msgspec.json.Decoder[D], data: bytes | msgspec.Raw, resource: Resource) -> D:
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        raise Unreachable(f"{resource.plural}: not an API server's answer: {error}") from error
