"""Time as a dependency, so that the whole system can run in one process on a virtual clock."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds that keep counting while the process is stopped (SIGSTOP) and while the machine sleeps."""
        ...

    def now(self) -> datetime:
        """Wall time, aware, UTC: for people and timestamps, never for deadlines."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """CLOCK_BOOTTIME: unlike CLOCK_MONOTONIC it counts suspended time too, as a fence must."""

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def rfc3339(moment: datetime) -> str:
    """`2026-08-01T12:00:00.000000Z` (metav1.MicroTime)."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
