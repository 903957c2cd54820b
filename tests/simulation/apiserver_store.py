"""What etcd is to an API server: objects, one counter of versions, a log to replay watches from."""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from kube.api.api import Resource

Doc = dict[str, Any]
Key = tuple[str, str]
"""(namespace, name)."""
Kind = tuple[str, str]
"""(group, plural): versions of one kind share their objects."""


def kind_of(resource: Resource) -> Kind:
    return (resource.group, resource.plural)


class Stored(NamedTuple):
    """An object as written. Both are shared: never change them."""

    doc: Doc
    data: bytes


class Change(NamedTuple):
    revision: int
    kind: Kind
    key: Key
    old: Stored | None
    new: Stored | None
    """None: deleted."""
    last: Stored
    """The object at this revision; of a deletion its last state with the deletion's version."""


class Expired(Exception):
    """The versions asked for are compacted away."""


class Backup(NamedTuple):
    revision: int
    objects: dict[Kind, dict[Key, Stored]]


class Store:
    def __init__(self, revision: int = 1000) -> None:
        self.revision = revision
        self.compacted = revision
        """Watches can be replayed from this version on."""
        self._objects: dict[Kind, dict[Key, Stored]] = {}
        self._log: list[Change] = []
        self._listeners: list[Callable[[Change], None]] = []

    def listen(self, listener: Callable[[Change], None]) -> None:
        """Called within each write, in order."""
        self._listeners.append(listener)

    def get(self, kind: Kind, key: Key) -> Stored | None:
        return self._objects.get(kind, {}).get(key)

    def all(self, kind: Kind, namespace: str = "") -> list[tuple[Key, Stored]]:
        """In the order of a list: by namespace and name."""
        objects = self._objects.get(kind, {})
        return sorted((key, stored) for key, stored in objects.items() if not namespace or key[0] == namespace)

    def kinds(self) -> list[Kind]:
        return sorted(self._objects)

    def put(self, kind: Kind, key: Key, doc: Doc) -> Stored:
        """Writes doc, which it takes over, with the next version."""
        old = self.get(kind, key)
        new = self._stamped(doc)
        self._objects.setdefault(kind, {})[key] = new
        self._record(Change(self.revision, kind, key, old, new, new))
        return new

    def remove(self, kind: Kind, key: Key) -> Stored:
        old = self._objects[kind].pop(key)
        last = self._stamped(copied(old.doc))
        self._record(Change(self.revision, kind, key, old, None, last))
        return last

    def since(self, kind: Kind, revision: int) -> list[Change]:
        """Raises Expired."""
        if revision < self.compacted:
            raise Expired
        return [change for change in self._log if change.kind == kind and change.revision > revision]

    def compact(self) -> None:
        self.compacted = self.revision
        self._log.clear()

    def backup(self) -> Backup:
        return Backup(self.revision, {kind: dict(objects) for kind, objects in self._objects.items()})

    def restore(self, backup: Backup) -> None:
        """Versions go back too; nobody is told."""
        self.revision = self.compacted = backup.revision
        self._objects = {kind: dict(objects) for kind, objects in backup.objects.items()}
        self._log.clear()

    def _stamped(self, doc: Doc) -> Stored:
        self.revision += 1
        doc["metadata"]["resourceVersion"] = str(self.revision)
        return Stored(doc, msgspec.json.encode(doc))

    def _record(self, change: Change) -> None:
        self._log.append(change)
        for listener in self._listeners:
            listener(change)


def copied(doc: Doc) -> Doc:
    made: Doc = msgspec.json.decode(msgspec.json.encode(doc))
    return made
