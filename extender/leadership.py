"""Who decides: this extender, exactly while the kube-scheduler beside it leads, and never two extenders at once.

Two leases are looked at. kube-scheduler's, to lead where it leads: pods come from that scheduler alone. And one of the
extender's own, so that two extenders set up for one scheduler by mistake do not both decide; it is the heartbeat too.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from extender.logs import line
from extender.waiting import first_of
from kube.api.clock import Clock

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
"""How often a loss is looked for. Nothing rests on it: every decision and every POST looks for itself."""


class Elector(Protocol):
    """`kube.api.leases.LeaderElector`."""

    def fence(self) -> float: ...

    async def wait_lost(self) -> None: ...

    async def run(self) -> None: ...


class Follower(Protocol):
    """`kube.api.leases.LeaseFollower`."""

    def held_by(self, identity: str) -> bool: ...

    def fence(self, identity: str) -> float: ...

    async def run(self) -> None: ...


class Leadership:
    """follower: of kube-scheduler's lease; None for a scheduler without leader election.

    scheduler_identity: the holder that counts as "beside us"; a prefix when it ends in "_" (kube-scheduler's identity
    is `<host name>_<uuid>`).
    """

    def __init__(self, clock: Clock, elector: Elector, follower: Follower | None, scheduler_identity: str) -> None:
        self._clock = clock
        self._elector = elector
        self._follower = follower
        self._scheduler = scheduler_identity

    def left(self) -> float:
        """Seconds for which nobody else can lead; 0 while not leading. Right even after a stop of the process."""
        own = self._elector.fence()
        return own if self._follower is None else min(own, self._follower.fence(self._scheduler))

    def why_not(self) -> str:
        """For /readyz; "" while leading."""
        if self._follower is not None and self._follower.fence(self._scheduler) <= 0:
            return f"the scheduler {self._scheduler!r} does not hold its lease"
        return "" if self.left() > 0 else "the extender's own lease is held by another"

    async def run(self) -> None:
        """Campaigns while the scheduler beside us leads; lets the own lease go when it does not."""
        if self._follower is None:
            await self._elector.run()
            return
        await first_of(self._follower.run(), self._campaign(self._follower))

    async def wait_leading(self) -> None:
        await self._until(lambda: self.left() > 0)

    async def wait_lost(self) -> None:
        """A term that lapsed and was renewed before anybody looked counts as lost too."""
        if self.left() > 0:
            await first_of(self._elector.wait_lost(), self._until(lambda: self.left() <= 0))

    async def _campaign(self, follower: Follower) -> None:
        while True:
            await self._until(lambda: follower.held_by(self._scheduler))
            log.info(line("the scheduler beside this extender leads", scheduler=self._scheduler))
            await first_of(self._elector.run(), self._until(lambda: not follower.held_by(self._scheduler)))
            log.info(line("the scheduler beside this extender does not lead any more", scheduler=self._scheduler))

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._clock.sleep(LOOK_SECONDS)


class Decider(Protocol):
    """`extender.effects_runner.EffectsRunner`."""

    def synced(self) -> None: ...

    def stood_down(self) -> None: ...


class Caches(Protocol):
    """`extender.feed.Feed`."""

    def list_again(self) -> None: ...

    async def wait_synced(self) -> None: ...


async def follow(
    leadership: Leadership,
    caches: Caches,
    decider: Decider,
    *,
    quiet: Callable[[], Awaitable[None]],
    on_leading: Callable[[bool], None] | None = None,
) -> None:
    """Lets the core decide exactly while this process leads with complete caches. For ever.

    quiet: waits as long as Bindings of a predecessor that was killed, or whose scheduler let go of its lease, may
    still be under way; what they take is seen by the watches before the first decision.
    """

    async def prepare() -> None:
        await quiet()
        await caches.wait_synced()

    while True:
        await leadership.wait_leading()
        # What was read before this leadership may be old: a watch that hung, a process that was stopped.
        caches.list_again()
        await first_of(prepare(), leadership.wait_lost())
        if leadership.left() <= 0:
            continue
        log.info("leading: caches are complete, deciding")
        decider.synced()
        if on_leading is not None:
            on_leading(True)
        try:
            await leadership.wait_lost()
        finally:
            log.info("not leading any more: held calls are answered with an error")
            decider.stood_down()
            if on_leading is not None:
                on_leading(False)
