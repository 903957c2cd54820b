"""Leases (coordination.k8s.io/v1): leadership, heartbeats, and watching someone else's.

All deadlines are on `Clock.monotonic`, counted from before the request that renewed; timestamps in the object are
for people. Nobody compares two machines' clocks (client-go tools/leaderelection works the same way).
"""

from collections.abc import Awaitable, Callable, Mapping
from random import Random

import msgspec

from kube.api.api import Api
from kube.api.clock import Clock
from kube.objects.meta import ObjectMeta


class LeaseSpec(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, rename="camel", kw_only=True):
    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"
    metadata: ObjectMeta
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


class LeaderElector:
    """One candidate. It leads from an acquisition until `margin_seconds` before anybody could take the lease over,
    whatever the API server does meanwhile.

    identity: unique per process (host name and a random part): a candidate that finds its own identity in the lease
    takes it at once.
    """

    def __init__(
        self,
        api: Api,
        clock: Clock,
        *,
        name: str,
        namespace: str,
        identity: str,
        lease_seconds: int = 15,
        margin_seconds: float = 5.0,
        retry_seconds: float = 2.0,
        call_seconds: float = 3.0,
        rng: Random | None = None,
        on_started: Callable[[], None] | None = None,
        on_stopped: Callable[[], None] | None = None,
    ) -> None:
        self.identity = identity
        self.transitions = 0
        """leaseTransitions as of our last acquisition: raised whenever the holder changes."""

    @property
    def leading(self) -> bool:
        """fence() > 0, judged on the clock at each access: right even after the process was stopped."""
        raise NotImplementedError

    def fence(self) -> float:
        """Seconds of leadership left, margin taken off; 0 when not leading."""
        raise NotImplementedError

    def holder(self) -> str:
        """Identity in the lease as last seen; "" if none."""
        raise NotImplementedError

    async def wait_leading(self) -> None:
        raise NotImplementedError

    async def wait_lost(self) -> None:
        """Returns once not leading."""
        raise NotImplementedError

    async def run(self) -> None:
        """Campaign and renew for ever. On cancellation while leading: on_stopped, then the lease is released."""
        raise NotImplementedError

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """run(), with `work()` running exactly while leading: cancelled and awaited when leadership ends, started
        anew with the next. Returns when work returns; raises what work raises."""
        raise NotImplementedError


class Heartbeat:
    """Renews a Lease we own, every `every_seconds` (made if missing).

    annotations: given those that are there, returns those to set, or None not to renew this time (fenced member,
    somebody with a better claim). Called before each write, again after a conflict.
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

    async def beat(self) -> Lease | None:
        """One renewal now. None: `annotations` said no. Raises ApiError."""
        raise NotImplementedError

    async def run(self) -> None:
        """beat() for ever; failures are retried at the next beat and kept in `trouble`."""
        raise NotImplementedError


class LeaseFollower:
    """Watches somebody else's Lease (kube-scheduler's, the hub's) by reading it every `every_seconds`.

    Reading, not watching: two reads bracket the renewal, so the deadline can be counted from before it.
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
        self.lease: Lease | None = None
        """As last read; None if there is none (or it was never read)."""
        self.renewals = 0
        """Changes of renewTime or holder seen by this process; the first read is not one."""

    def holder(self) -> str:
        """Who holds it now; "" if nobody, expired by our count, or not known."""
        raise NotImplementedError

    def held_by(self, identity: str) -> bool:
        """An identity may end in "_" and is a prefix then: kube-scheduler's is `<host name>_<uuid>`."""
        raise NotImplementedError

    def fence(self, identity: str) -> float:
        """Seconds for which `identity` surely holds it: nobody can have taken it over before. 0 if it does not."""
        raise NotImplementedError

    def silence(self) -> float:
        """Seconds since this process last saw it renewed (inf: never; a first read counts as no renewal)."""
        raise NotImplementedError

    async def run(self) -> None:
        raise NotImplementedError
