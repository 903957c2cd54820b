"""Publishes what the cluster can still hold: the ClusterCapacity object, on change, at most once in an interval."""

import logging
from collections.abc import Callable
from random import Random

import msgspec

from extender.logs import line
from kube.api.api import CAPACITIES, Api
from kube.api.backoff import Backoff
from kube.api.clock import Clock
from kube.api.errors import ApiError, Conflict, NotFound, StatusError
from kube.api.writes import create_or_read, replace
from kube.objects.capacity import CapacityStatus, ClusterCapacity
from kube.objects.meta import ObjectMeta
from kube.objects.names import CAPACITY_NAME

log = logging.getLogger(__name__)

RETRY = Backoff(first=0.5, factor=2.0, cap=15.0)
UNCHANGED_SHARE = 0.25
"""Of the interval, to the next look after one that found nothing new."""


class Reporter:
    """report: the present capacity, or None while there is nothing to say (not deciding).

    wait_changed: returns once there may be something new. interval: seconds from one report to the next at least.
    """

    def __init__(
        self,
        api: Api,
        clock: Clock,
        report: Callable[[], CapacityStatus | None],
        *,
        interval: float,
        timeout: float,
        rng: Random | None = None,
    ) -> None:
        self._api = api
        self._clock = clock
        self._report = report
        self._interval = interval
        self._timeout = timeout
        self._rng = rng or Random()  # noqa: S311 - jitter
        self._there: ClusterCapacity | None = None
        """The object as last written or read; None when it has to be read first."""
        self._said: CapacityStatus | None = None

    async def publish(self) -> None:
        """Writes the present capacity, however long the API server is away, then keeps the interval, or a part of it
        when there was nothing new."""
        failures = 0
        while True:
            status = self._report()
            if status is None:
                self._said = None  # whoever leads meanwhile may have written
                return
            if _same(status, self._said):
                # Most changes of the ledger show nothing new, and a look costs several us per node.
                await self._clock.sleep(self._interval * UNCHANGED_SHARE)
                return
            try:
                await self._write(status)
            except (Conflict, NotFound) as error:
                self._there = None
                problem: ApiError = error
            except ApiError as error:
                problem = error
            else:
                self._said = status
                await self._clock.sleep(self._interval)
                return
            failures += 1
            log.warning(line("capacity not reported", err=problem))
            retry_after = problem.retry_after if isinstance(problem, StatusError) else None
            await self._clock.sleep(RETRY.delay(failures, self._rng, retry_after))

    async def _write(self, status: CapacityStatus) -> None:
        there = self._there
        if there is None:
            new = ClusterCapacity(metadata=ObjectMeta(name=CAPACITY_NAME))
            made, _ = await create_or_read(self._api, CAPACITIES, new, timeout=self._timeout)
            there = made
        meta = ObjectMeta(name=CAPACITY_NAME, resource_version=there.metadata.resource_version)
        body = ClusterCapacity(metadata=meta, status=status)
        self._there = await replace(self._api, CAPACITIES, body, subresource="status", timeout=self._timeout)


def _same(status: CapacityStatus, said: CapacityStatus | None) -> bool:
    return said is not None and msgspec.structs.replace(status, sequence=said.sequence) == said
