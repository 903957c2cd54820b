"""Virtual time: an event loop whose clock jumps to the next timer instead of waiting for it.

    @virtual
    async def test_a_day_passes():
        await asyncio.sleep(86_400)      # returns at once

Everything that asks the loop for time follows: `asyncio.sleep`, `asyncio.timeout`, `VirtualClock`. One thread, no
sockets: the order of events is decided by the program and the seed alone.
"""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

START = datetime(2026, 8, 1, 12, 0, 0, tzinfo=UTC)
"""Wall time at loop time 0."""

REAL_SECONDS_UNTIL_DEADLOCK = 5.0
"""How long nothing may happen in reality while no timer runs: a test that uses a thread gets that long."""

DEFAULT_LIMIT = 7 * 86_400.0
"""Virtual seconds that a test may take: what waits for something that never comes ends by this."""


TURNS_UNTIL_LIVELOCK = 1_000_000
"""Turns of the loop at one moment of virtual time."""


class Deadlock(Exception):
    """Every task waits and no timer runs: nothing can ever happen again."""


class Livelock(Exception):
    """Somebody is always ready, so time stands still: a task spins."""


class _JumpingSelector(selectors.DefaultSelector):
    """Polls, and where the loop would wait, moves the loop's time instead."""

    loop: "VirtualLoop"
    _turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            events = super().select(REAL_SECONDS_UNTIL_DEADLOCK)
            if not events:
                raise Deadlock("nothing can ever happen again; waiting are:\n  " + _tasks(self.loop))
            return events
        events = super().select(0)
        self._turns += 1
        if not events and timeout > 0:
            self.loop.advance(timeout)
            self._turns = 0
        elif self._turns > TURNS_UNTIL_LIVELOCK:
            raise Livelock(f"{self._turns} turns and no time passed; tasks:\n  " + _tasks(self.loop))
        return events


def _tasks(loop: asyncio.AbstractEventLoop) -> str:
    return "\n  ".join(sorted(str(task.get_coro()) for task in asyncio.all_tasks(loop)))


class VirtualLoop(asyncio.SelectorEventLoop):
    """rng: where given, timers due at the same moment run in an order drawn from it, so that seeds explore
    interleavings; else in the order in which the heap has them, which is the same in every run."""

    def __init__(self, rng: Random | None = None) -> None:
        selector = _JumpingSelector()
        selector.loop = self
        self._now = 0.0
        self._rng = rng
        super().__init__(selector)

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        if self._rng is not None:
            when += self._rng.random() * 1e-6
        return super().call_at(when, callback, *args, context=context)


class VirtualClock:
    """`kube.api.clock.Clock` on the running loop's time.

    skew_seconds: how far this machine's wall clock is off. Its monotonic clock starts at an origin of its own, as
    every machine's does, so that comparing two machines' readings is caught.
    """

    def __init__(self, skew_seconds: float = 0.0, origin: float = 1000.0) -> None:
        self.skew_seconds = skew_seconds
        self._origin = origin

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() + self._origin

    def now(self) -> datetime:
        return START + timedelta(seconds=asyncio.get_running_loop().time() + self.skew_seconds)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run_virtual(main: Coroutine[Any, Any, R], *, rng: Random | None = None, limit: float = DEFAULT_LIMIT) -> R:
    """Run to the end in virtual time; TimeoutError after `limit` virtual seconds, Deadlock if all stands still."""

    async def limited() -> R:
        async with asyncio.timeout(limit):
            return await main

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(rng)) as runner:
        return runner.run(limited())


def virtual(test: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    """Decorator: an async test in virtual time."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return run_virtual(test(*args, **kwargs))

    return run


async def until(condition: Callable[[], bool], within: float = 600.0, step: float = 0.01) -> float:
    """Waits for a condition in virtual time and returns the seconds it took. AssertionError when it does not come."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition():
        assert loop.time() - began < within, f"not within {within} virtual seconds: {condition}"
        await asyncio.sleep(step)
    return loop.time() - began


async def settled(seconds: float = 1.0) -> None:
    """Lets everything that is due within `seconds` happen."""
    await asyncio.sleep(seconds)
