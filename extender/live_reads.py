"""Keeps single live reads and the watch of one resource from contradicting each other. Pure.

A live read before a commit may be ahead of the watch. What the watch then still delivers of the older past must not
take back what the core was told.
"""

from typing import NamedTuple

from kube.api.cache import Change, HasMetadata, Key
from kube.objects.meta import ObjectMeta

GONE = float("inf")


class _Mark(NamedTuple):
    uid: str
    version: float
    """resourceVersion as a number (KEP-5504); GONE after a deletion."""


class LiveReads:
    """Marks live only until the watch has caught up."""

    def __init__(self) -> None:
        self._marks: dict[Key, _Mark] = {}

    def __len__(self) -> int:
        return len(self._marks)

    def read(self, key: Key, live: ObjectMeta | None, cached: ObjectMeta | None) -> tuple[str, bool]:
        """A live read of `key` gave `live`, the watch's cache holds `cached`.

        Returns (uid of an object to be told deleted or "", whether `live` is to be told).
        """
        mark = self._marks.get(key)
        told_uid = mark.uid if mark is not None else cached.uid if cached is not None else ""
        told_gone = mark is not None and mark.version == GONE
        if live is None:
            if not told_uid or told_gone:
                return "", False
            self._marks[key] = _Mark(told_uid, GONE)
            return told_uid, False
        known = mark.version if mark is not None else _version(cached) if cached is not None else -1.0
        if told_uid == live.uid and (told_gone or known >= _version(live)):
            return "", False
        self._marks[key] = _Mark(live.uid, _version(live))
        return ("" if told_uid == live.uid or told_gone else told_uid), True

    def passes(self, change: Change, old: HasMetadata | None, new: HasMetadata | None) -> bool:
        """Whether the core is to hear of this watch event."""
        metadata = (new or old).metadata  # type: ignore[union-attr]
        mark = self._marks.get(metadata.key)
        if mark is None:
            return True
        if change is Change.DELETED:
            if metadata.uid != mark.uid:
                return False  # an incarnation before the one that was read
            del self._marks[metadata.key]
            return mark.version != GONE
        if metadata.uid == mark.uid:
            if _version(metadata) < mark.version:
                return False
            del self._marks[metadata.key]
            return _version(metadata) > mark.version
        if mark.version == GONE or _version(metadata) > mark.version:
            del self._marks[metadata.key]
            return True
        return False

    def forget(self) -> None:
        """A fresh list is coming."""
        self._marks.clear()


def _version(metadata: ObjectMeta) -> float:
    return float(metadata.resource_version) if metadata.resource_version.isdecimal() else 0.0
