"""One open watch of a simulated API server: which changes it shows as which events."""

import asyncio
from collections import deque

import msgspec

from tests.simulation.apiserver_selectors import Matcher
from tests.simulation.apiserver_store import Change, Doc, Kind, Stored, copied


class Watcher:
    """Lines wait in `lines`, `arrived` is set with each. `after`: changes up to this version are not shown."""

    broken = False
    """The connection is reset."""
    silent = False
    """Nothing gets through; what there is to say waits."""
    ended = False
    """After what waits, the server closes."""

    def __init__(self, kind: Kind, namespace: str, after: int, matchers: tuple[Matcher, ...]) -> None:
        self.lines: deque[bytes] = deque()
        self.arrived = asyncio.Event()
        self._kind = kind
        self._namespace = namespace
        self._after = after
        self._matchers = matchers

    def show(self, change: Change) -> None:
        if change.kind != self._kind or change.revision <= self._after:
            return
        if self._namespace and change.key[0] != self._namespace:
            return
        was, now = self._matches(change.old), self._matches(change.new)
        if now:
            assert change.new is not None
            self._send("MODIFIED" if was else "ADDED", change.new.data)
        elif was:
            # Gone, or out of the selector: the state the watcher knew, with the version of the change.
            assert change.old is not None
            last = change.last.data if change.new is None else _at(change.old.doc, change.revision)
            self._send("DELETED", last)

    def show_present(self, stored: Stored) -> None:
        """A watch from version 0 begins with what is there."""
        if self._matches(stored):
            self._send("ADDED", stored.data)

    def bookmark(self, revision: int, api_version: str, kind: str) -> None:
        if revision > self._after:
            meta = {"apiVersion": api_version, "kind": kind, "metadata": {"resourceVersion": str(revision)}}
            self._send("BOOKMARK", msgspec.json.encode(meta))

    def error(self, status: Doc) -> None:
        self._send("ERROR", msgspec.json.encode(status))
        self.ended = True

    def _matches(self, stored: Stored | None) -> bool:
        return stored is not None and all(matches(stored.doc) for matches in self._matchers)

    def _send(self, type_: str, data: bytes) -> None:
        self.lines.append(b'{"type":"%s","object":%s}' % (type_.encode(), data))
        self.arrived.set()


def _at(doc: Doc, revision: int) -> bytes:
    shown = copied(doc)
    shown["metadata"]["resourceVersion"] = str(revision)
    return msgspec.json.encode(shown)
