"""Leases (coordination.k8s.io/v1): leadership (kube.api.election), heartbeats, and following someone else's.

All deadlines are on `Clock.monotonic`, counted from before the request that renewed; timestamps in the object are
for people. Nobody compares two machines' clocks.
"""

import logging
import math
from collections.abc import Callable, Mapping

from kube.api.api import Api
from kube.api.clock import Clock, rfc3339
from kube.api.election import LeaderElector
from kube.api.errors import AlreadyExists, ApiError, Conflict, NotFound
from kube.api.lease import Lease, LeaseSpec, read_lease, write_lease
from kube.objects.meta import ObjectMeta

__all__ = ["Heartbeat", "LeaderElector", "Lease", "LeaseFollower", "LeaseSpec"]

log = logging.getLogger(__name__)

BEAT_ATTEMPTS = 3
"""Tries of one beat that meet somebody else's write."""


class Heartbeat:
    """Renews a Lease we own, every `every_seconds` (made if missing).

    annotations: given those that are there, returns those to set (others stay), or None not to renew this time
    (fenced member, somebody with a better claim). Called before each write, again after a conflict.
    """

    def __init__(
        self,
        api: Api,
        clock: Clock,
        *,
        name: str,
        namespace: str,
        holder: str,
        lease_seconds: int,
        every_seconds: float,
        annotations: Callable[[Mapping[str, str]], Mapping[str, str] | None] = dict,
        call_seconds: float = 5.0,
    ) -> None:
        self.renewed_at: float | None = None
        """Clock.monotonic just before the last successful renewal was sent."""
        self.lease: Lease | None = None
        """As last read or written."""
        self.trouble: ApiError | None = None
        """Why the last beat of run() failed; None if it did not."""
        self._api = api
        self._clock = clock
        self._name = name
        self._namespace = namespace
        self._holder = holder
        self._lease_seconds = lease_seconds
        self._every_seconds = every_seconds
        self._annotations = annotations
        self._call_seconds = call_seconds
        self._current = False

    async def beat(self) -> Lease | None:
        """One renewal now. None: `annotations` said no. Raises ApiError."""
        for attempt in range(1, BEAT_ATTEMPTS + 1):
            try:
                if not self._current:
                    self.lease = await read_lease(self._api, self._name, self._namespace, self._call_seconds)
                self._current = False
                wanted = self._wanted(self.lease)
                if wanted is None:
                    return None
                sent_at = self._clock.monotonic()
                self.lease = await write_lease(self._api, wanted, self._call_seconds)
            except (Conflict, AlreadyExists, NotFound):
                if attempt == BEAT_ATTEMPTS:
                    raise
            else:
                self._current = True
                self.renewed_at = sent_at
                return self.lease
        raise AssertionError("BEAT_ATTEMPTS is at least 1")

    async def run(self) -> None:
        """beat() for ever; failures are retried at the next beat and kept in `trouble`."""
        while True:
            try:
                await self.beat()
                self.trouble = None
            except ApiError as error:
                if self.trouble is None:
                    log.warning("lease %s/%s: not renewed: %s", self._namespace, self._name, error)
                self.trouble = error
            await self._clock.sleep(self._every_seconds)

    def _wanted(self, lease: Lease | None) -> Lease | None:
        metadata = lease.metadata if lease else ObjectMeta(name=self._name, namespace=self._namespace)
        spec = lease.spec if lease else LeaseSpec(lease_transitions=0)
        there = metadata.annotations or {}
        ours = self._annotations(dict(there))
        if ours is None:
            return None
        now = rfc3339(self._clock.now())
        same = spec.holder_identity == self._holder
        return Lease(
            metadata=ObjectMeta(
                name=metadata.name,
                namespace=metadata.namespace,
                uid=metadata.uid,
                resource_version=metadata.resource_version,
                labels=metadata.labels,
                annotations={**there, **ours} or None,
                owner_references=metadata.owner_references,
                finalizers=metadata.finalizers,
            ),
            spec=LeaseSpec(
                holder_identity=self._holder,
                lease_duration_seconds=self._lease_seconds,
                acquire_time=spec.acquire_time if same else now,
                renew_time=now,
                lease_transitions=(spec.lease_transitions or 0) + (0 if same or lease is None else 1),
            ),
        )


class LeaseFollower:
    """Watches somebody else's Lease (kube-scheduler's, the hub's) by reading it every `every_seconds`.

    Reading, not watching: two reads bracket the renewal, so its deadline can be counted from before it.
    """

    def __init__(
        self,
        api: Api,
        clock: Clock,
        *,
        name: str,
        namespace: str,
        every_seconds: float = 1.0,
        call_seconds: float = 3.0,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """on_change: called after a read that found another record than the one before (renewals included)."""
        self.lease: Lease | None = None
        """As last read; None if there is none (or it was never read)."""
        self.renewals = 0
        """Changes of the record seen by this process that left somebody holding it; the first read is not one."""
        self.trouble: ApiError | None = None
        """Why the last read failed; None if it did not."""
        self._api = api
        self._clock = clock
        self._name = name
        self._namespace = namespace
        self._every_seconds = every_seconds
        self._call_seconds = call_seconds
        self._on_change = on_change
        self._read_at: float | None = None
        """When the last successful read was sent: what it showed was still so then."""
        self._seen_at = -math.inf
        """When the present record was first seen: it was written no later."""
        self._written_after = -math.inf
        """The present record was written after this."""
        self._renewal_seen_at = -math.inf

    def holder(self) -> str:
        """Who holds it now; "" if nobody, expired by our count, or not known."""
        if self.lease is None or self._clock.monotonic() - self._seen_at > self.lease.seconds:
            return ""
        return self.lease.holder

    def held_by(self, identity: str) -> bool:
        """An identity may end in "_" and is a prefix then: kube-scheduler's is `<host name>_<uuid>`."""
        return _matches(self.holder(), identity)

    def fence(self, identity: str) -> float:
        """Seconds for which `identity` surely holds it: nobody can have taken it over before. 0 if it does not, and
        until the first renewal has been seen."""
        if self.lease is None or not _matches(self.lease.holder, identity):
            return 0.0
        return max(0.0, self._written_after + self.lease.seconds - self._clock.monotonic())

    def silence(self) -> float:
        """Seconds since this process last saw it renewed (inf: never; a first read counts as no renewal)."""
        return self._clock.monotonic() - self._renewal_seen_at

    async def read(self) -> None:
        """One read now. Raises ApiError."""
        sent_at = self._clock.monotonic()
        lease = await read_lease(self._api, self._name, self._namespace, self._call_seconds)
        now = self._clock.monotonic()
        first = self._read_at is None
        changed = first or (lease.spec if lease else None) != (self.lease.spec if self.lease else None)
        self.lease = lease
        if changed:
            self._seen_at = now
            self._written_after = -math.inf if self._read_at is None else self._read_at
            if not first and lease is not None and lease.holder:
                self.renewals += 1
                self._renewal_seen_at = now
        self._read_at = sent_at
        if changed and self._on_change is not None:
            self._on_change()

    async def run(self) -> None:
        while True:
            try:
                await self.read()
                self.trouble = None
            except ApiError as error:
                if self.trouble is None:
                    log.warning("lease %s/%s: not read: %s", self._namespace, self._name, error)
                self.trouble = error
            await self._clock.sleep(self._every_seconds)


def _matches(holder: str, identity: str) -> bool:
    return bool(holder) and (holder.startswith(identity) if identity.endswith("_") else holder == identity)
