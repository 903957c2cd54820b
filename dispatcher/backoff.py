"""Pauses that double: for steps that fail, and for members that refused a job."""

from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)


class _Pause(msgspec.Struct):
    failures: int
    since: float
    until: float


class Backoff(Generic[K]):
    """Seconds on one monotonic clock, passed in. Forget what is gone: `forget` keeps it from growing for ever."""

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._pauses: dict[K, _Pause] = {}

    def __len__(self) -> int:
        return len(self._pauses)

    def __contains__(self, key: K) -> bool:
        return key in self._pauses

    def failed(self, key: K, now: float) -> float:
        """One more failure. Returns the seconds to pause."""
        known = self._pauses.get(key)
        failures = known.failures + 1 if known else 1
        pause: float = min(self._longest, self._first * 2 ** min(failures - 1, 30))
        self._pauses[key] = _Pause(failures, now, now + pause)
        return pause

    def left(self, key: K, now: float) -> float:
        """Seconds still to pause; 0 if none."""
        known = self._pauses.get(key)
        return max(0.0, known.until - now) if known else 0.0

    def ease(self, key: K, now: float, *, patient_after: int = 3, at_least: float = 10.0) -> bool:
        """Things have changed for the better: end the pause, unless it failed `patient_after` times already and
        pauses for less than `at_least`. The count is kept, so a member that always refuses is asked ever less."""
        known = self._pauses.get(key)
        if known is None or known.until <= now:
            return False
        if known.failures > patient_after and now - known.since < at_least:
            return False
        known.until = now
        return True

    def forget(self, key: K) -> None:
        self._pauses.pop(key, None)
