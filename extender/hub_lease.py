"""Proof that the hub is alive and has not fenced this member: its Lease in here gets renewed (PROTOCOL rule 12).

Reads instead of a watch, because a renewal counts from the read before it: a process that was stopped for long must
not take a renewal from before its stop for a fresh one.
"""

import logging
from collections.abc import Callable

import msgspec

from extender.logs import line
from kube.api.api import LEASES, Api
from kube.api.clock import Clock
from kube.api.errors import ApiError
from kube.api.leases import Lease
from kube.api.writes import read
from kube.objects.names import HUB_LEASE, MUSTER_NAMESPACE

log = logging.getLogger(__name__)

LONGEST_GAP_FACTOR = 3
"""Two reads further apart than this many intervals prove nothing about when the renewal happened."""


class HubLease:
    """renewed: called at each renewal seen, never for the first sight."""

    def __init__(
        self, api: Api, clock: Clock, renewed: Callable[[], None], *, every_seconds: float, call_seconds: float
    ) -> None:
        self._api = api
        self._clock = clock
        self._renewed = renewed
        self._every = every_seconds
        self._call = call_seconds
        self._seen: tuple[str, str | None, str | None] | None = None
        """(uid, holder, renewTime) as last read; None while it was never read or is not there."""
        self._read_at = float("-inf")

    async def run(self) -> None:
        while True:
            await self.look()
            await self._clock.sleep(self._every)

    async def look(self) -> None:
        """One read."""
        began = self._clock.monotonic()
        try:
            lease = await read(self._api, LEASES, Lease, HUB_LEASE, MUSTER_NAMESPACE, timeout=self._call)
        except (ApiError, msgspec.ValidationError) as error:
            log.warning(line("the hub's lease could not be read", err=error))
            return
        seen = (lease.metadata.uid, lease.spec.holder_identity, lease.spec.renew_time) if lease is not None else None
        fresh = began - self._read_at <= LONGEST_GAP_FACTOR * self._every + self._call
        if seen is not None and seen != self._seen and fresh:
            self._renewed()
        self._seen = seen
        self._read_at = began
