"""The keyed cache behind a reflector: which changes follow from what the server says. Pure and synchronous."""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

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
"""(change, old, new). Added: old is None. Deleted: new is None, old is what the cache held (its last known state).
Deleted and Added in a row for an object that was made again under its name (another uid)."""


class ObjectCache(Generic[T]):
    """At most one object per key; every difference is told to the handlers, in order, before the next one is made."""

    def __init__(self) -> None:
        self._objects: dict[Key, T] = {}
        self._handlers: list[Handler[T]] = []

    def subscribe(self, handler: Handler[T]) -> None:
        """What is cached already is replayed as Added."""
        for obj in list(self._objects.values()):
            handler(Change.ADDED, None, obj)
        self._handlers.append(handler)

    def get(self, key: Key) -> T | None:
        return self._objects.get(key)

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def missing_from(self, seen: set[Key]) -> list[Key]:
        """Cached keys that are not in `seen`."""
        return [key for key in self._objects if key not in seen]

    def put(self, obj: T, *, from_watch: bool) -> None:
        """The object exists in this state.

        A watch event no newer than what is cached is a replay and ignored (resourceVersions of one object are
        comparable integers, KEP-5504). A list is believed whatever it says: a restored etcd counts from lower again,
        and over the same numbers a second time.
        """
        key = obj.metadata.key
        old = self._objects.get(key)
        if old is None:
            self._objects[key] = obj
            self._tell(Change.ADDED, None, obj)
            return
        if old.metadata.uid != obj.metadata.uid:
            if from_watch and _older(obj, old):
                return
            del self._objects[key]
            self._tell(Change.DELETED, old, None)
            self._objects[key] = obj
            self._tell(Change.ADDED, None, obj)
            return
        same_version = old.metadata.resource_version == obj.metadata.resource_version
        if (same_version or _older(obj, old)) if from_watch else (same_version and old == obj):
            return
        self._objects[key] = obj
        self._tell(Change.MODIFIED, old, obj)

    def delete(self, metadata: ObjectMeta) -> None:
        """The watch says this incarnation is gone (or has left the selector). Of another incarnation: a replay."""
        old = self._objects.get(metadata.key)
        if old is not None and old.metadata.uid == metadata.uid and not _older_version(metadata, old.metadata):
            self.drop(metadata.key)

    def drop(self, key: Key) -> None:
        """A complete list did not have it."""
        old = self._objects.pop(key, None)
        if old is not None:
            self._tell(Change.DELETED, old, None)

    def _tell(self, change: Change, old: T | None, new: T | None) -> None:
        for handler in self._handlers:
            handler(change, old, new)


def _older(obj: HasMetadata, than: HasMetadata) -> bool:
    return _older_version(obj.metadata, than.metadata)


def _older_version(meta: ObjectMeta, than: ObjectMeta) -> bool:
    mine, other = meta.resource_version, than.resource_version
    return mine.isdecimal() and other.isdecimal() and int(mine) < int(other)
