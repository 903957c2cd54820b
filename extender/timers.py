"""Deadlines of the core: one per (kind, key), found in the order they fall due. The core holds no other clock."""

import heapq
from collections.abc import Collection
from enum import StrEnum
from itertools import count


class Timer(StrEnum):
    ASSEMBLING = "assembling"
    """Key: gang. Room for unseen members is held until then."""
    BARRIER = "barrier"
    """Key: gang. Held calls are answered together then."""
    HOLD = "hold"
    """Key: gang. A user's planned gang gives its slots back then (scheduleTimeoutSeconds)."""
    HEAL = "heal"
    """Key: gang. A half-bound gang, or a landed one below its minimum, is evicted whole then."""
    EVICT = "evict"
    """Key: gang. Eviction of what is left is asked for again."""
    GATE = "gate"
    """Key: pod UID. A bind without room stops waiting for the watch."""
    RETRY = "retry"
    """Key: pod UID. A failed POST is sent again."""
    UNKNOWN = "unknown"
    """Key: pod UID. A Binding without an answer gives its room back."""
    ANSWERED = "answered"
    """Key: pod UID. Room kept between an answer of `filter` and its bind is given back."""
    UNSEEN = "unseen"
    """Key: pod UID. A pod known only from a request is forgotten unless the watch showed it."""
    TTL = "ttl"
    """Key: gang. A Pending reservation ends."""
    LANDING = "landing"
    """Key: gang. A dispatched reservation has not landed in time."""
    STATUS = "status"
    """Key: gang. A status write that was not seen is asked for again."""
    PLAN = "plan"
    """Key: "". Blocked gangs are tried again."""
    WAKE = "wake"
    """Key: gang, or pod UID. Waiting pods are patched so that kube-scheduler asks again."""
    GROUP = "group"
    """Key: gang. The status of its PodGroup is written."""
    GRACE = "grace"
    """Key: "". POSTs that waited after a take-over are sent."""
    CLAIM = "claim"
    """Key: gang. A claim on nodes ends."""
    TOMBSTONES = "tombstones"
    """Key: "". Deleted UIDs are forgotten."""


class Timers:
    """Set, moved and cleared in O(log n); a stale heap entry is skipped when it surfaces."""

    def __init__(self) -> None:
        self._at: dict[tuple[Timer, str], float] = {}
        self._heap: list[tuple[float, int, tuple[Timer, str]]] = []
        self._serial = count()

    def __len__(self) -> int:
        return len(self._at)

    def set(self, timer: Timer, key: str, at: float) -> None:
        """Due at `at`, replacing an earlier or later setting of the same timer."""
        self._at[(timer, key)] = at
        heapq.heappush(self._heap, (at, next(self._serial), (timer, key)))
        if len(self._heap) > 64 + 4 * len(self._at):
            self._heap = [(due, next(self._serial), name) for name, due in self._at.items()]
            heapq.heapify(self._heap)

    def set_earliest(self, timer: Timer, key: str, at: float) -> None:
        """Due at `at`, unless it is due earlier already."""
        present = self._at.get((timer, key))
        if present is None or at < present:
            self.set(timer, key, at)

    def clear(self, timer: Timer, key: str) -> None:
        self._at.pop((timer, key), None)

    def get(self, timer: Timer, key: str) -> float | None:
        return self._at.get((timer, key))

    def next_due(self) -> float | None:
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> tuple[Timer, str] | None:
        """The earliest timer due by `now`, cleared; None when nothing is due."""
        self._drop_stale()
        if not self._heap or self._heap[0][0] > now:
            return None
        name = heapq.heappop(self._heap)[2]
        del self._at[name]
        return name

    def keep_only(self, kinds: Collection[Timer]) -> None:
        self._at = {name: due for name, due in self._at.items() if name[0] in kinds}

    def _drop_stale(self) -> None:
        while self._heap and self._at.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
