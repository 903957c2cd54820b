"""Leadership by a Lease: at most one leader at any moment, whatever API server, network and process do.

The algorithm is client-go's (tools/leaderelection): a candidate takes the lease once it has seen the same record for
its whole duration, on its own clock. The leader counts from *before* it sent the renewal that succeeded, and stops a
margin earlier, so it has stopped before anybody can take over. Both sides rest on resourceVersion, not on wall time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random

import msgspec

from kube.api.api import Api
from kube.api.clock import Clock, rfc3339
from kube.api.errors import AlreadyExists, ApiError, Conflict, NotFound
from kube.api.lease import Lease, LeaseSpec, read_lease, write_lease
from kube.objects.meta import ObjectMeta

log = logging.getLogger(__name__)

RELEASED_SECONDS = 1
"""leaseDurationSeconds of a released lease (client-go writes 1 too: 0 is invalid)."""


class LeaderElector:
    """One candidate. It leads from an acquisition until `margin_seconds` before anybody could take the lease over.

    identity: unique per process (host name and a random part): a candidate that finds its own identity in the lease
    takes it at once. margin_seconds: what stopping takes, and the drift of clocks. Raises ValueError unless
    call_seconds + retry_seconds fit into the rest, so that one failed renewal does not cost the leadership.
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
        if not identity:
            raise ValueError("an empty identity means nobody holds the lease")
        if lease_seconds < margin_seconds + retry_seconds + call_seconds:
            raise ValueError(
                f"lease of {lease_seconds} s is shorter than margin {margin_seconds} s + retry {retry_seconds} s "
                f"+ call {call_seconds} s"
            )
        self.identity = identity
        self.transitions = 0
        """leaseTransitions as of our last acquisition: raised whenever the holder changes."""
        self.trouble: ApiError | None = None
        """Why the last attempt failed; None if it did not."""
        self._api = api
        self._clock = clock
        self._name = name
        self._namespace = namespace
        self._lease_seconds = lease_seconds
        self._margin_seconds = margin_seconds
        self._retry_seconds = retry_seconds
        self._call_seconds = call_seconds
        self._rng = rng or Random()  # noqa: S311 - jitter
        self._on_started = on_started
        self._on_stopped = on_stopped
        self._lease: Lease | None = None
        self._current = False
        """`_lease` is what the server has, as far as we know: it can be replaced without reading it first."""
        self._seen: LeaseSpec | None = None
        self._seen_at = 0.0
        self._deadline: float | None = None
        """While a term lasts: when it ends unless renewed."""
        self._started = asyncio.Event()
        self._over = asyncio.Event()
        self._over.set()

    @property
    def leading(self) -> bool:
        """Whether fence() > 0, judged on the clock at each access: right even after the process was stopped."""
        return self.fence() > 0

    def fence(self) -> float:
        """Seconds of leadership left, margin taken off; 0 when not leading."""
        if self._deadline is None:
            return 0.0
        return max(0.0, self._deadline - self._clock.monotonic())

    def holder(self) -> str:
        """Identity in the lease as last seen; "" if none."""
        return self._lease.holder if self._lease else ""

    async def wait_leading(self) -> None:
        await self._started.wait()

    async def wait_lost(self) -> None:
        """Returns once the present term is over; at once if there is none."""
        await self._over.wait()

    async def run(self) -> None:
        """Campaign and renew for ever. On cancellation while leading: on_stopped, then the lease is released."""
        try:
            while True:
                await self._attempt()
                if self.leading:
                    await self._clock.sleep(min(self._retry_seconds, self.fence()))
                else:
                    self._end_term()
                    await self._clock.sleep(self._retry_seconds * self._rng.uniform(1.0, 1.2))
                if not self.leading:
                    self._end_term()
        finally:
            self._end_term()
            await self._release()

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """run(), with `work()` running exactly while leading: cancelled and awaited when leadership ends, started
        anew with the next. Returns when work returns; raises what work raises. Work ends before the release."""
        campaign = asyncio.ensure_future(self.run())
        try:
            while not campaign.done() and not await self._work_one_term(work, campaign):
                pass
        finally:
            campaign.cancel()
            await _settle(campaign)

    async def _work_one_term(self, work: Callable[[], Awaitable[None]], campaign: asyncio.Future[None]) -> bool:
        """Whether work is done for good."""
        leading = asyncio.ensure_future(self.wait_leading())
        try:
            await asyncio.wait((leading, campaign), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leading.cancel()
            await _settle(leading)
        if campaign.done():
            return False
        lost = asyncio.ensure_future(self.wait_lost())
        working = asyncio.ensure_future(work())
        try:
            await asyncio.wait((working, lost, campaign), return_when=asyncio.FIRST_COMPLETED)
            return working.done()
        finally:
            lost.cancel()
            working.cancel()
            await _settle(lost, working)

    # One attempt --------------------------------------------------------------------------------------------------

    async def _attempt(self) -> None:
        """Renew, or acquire if that is allowed. Never raises ApiError; `leading` and `trouble` tell the outcome."""
        try:
            try:
                await self._read_and_write()
            except (Conflict, AlreadyExists, NotFound):
                # Somebody wrote in between (an annotation, a rival): look again at once.
                self._current = False
                await self._read_and_write()
            self.trouble = None
        except ApiError as error:
            # A renewal may have been written all the same; then the next one meets a Conflict and looks again.
            if self.trouble is None:
                log.warning("lease %s/%s: %s", self._namespace, self._name, error)
            self.trouble = error

    async def _read_and_write(self) -> None:
        if not self._current:
            self._observe(await read_lease(self._api, self._name, self._namespace, self._timeout()))
        sent_at = self._clock.monotonic()
        if not self._may_take(sent_at):
            return
        self._observe(await write_lease(self._api, self._ours(), self._timeout()))
        self._held_since(sent_at)

    def _timeout(self) -> float:
        """A renewal that outlives the leadership is of no use."""
        return min(self._call_seconds, self.fence()) if self.leading else self._call_seconds

    def _observe(self, lease: Lease | None) -> None:
        self._lease = lease
        self._current = True
        seen = lease.spec if lease else None
        if seen != self._seen:
            self._seen = seen
            self._seen_at = self._clock.monotonic()

    def _may_take(self, now: float) -> bool:
        lease = self._lease
        if lease is None or lease.holder in {"", self.identity}:
            return True
        self._current = False  # somebody else's: always read it again
        return now - self._seen_at > lease.seconds

    def _ours(self) -> Lease:
        now = rfc3339(self._clock.now())
        old = self._lease
        if old is None:
            metadata, spec = ObjectMeta(name=self._name, namespace=self._namespace), LeaseSpec(lease_transitions=0)
        else:
            metadata, spec = old.metadata, old.spec
        same = spec.holder_identity == self.identity
        return Lease(
            metadata=metadata,
            spec=LeaseSpec(
                holder_identity=self.identity,
                lease_duration_seconds=self._lease_seconds,
                acquire_time=spec.acquire_time if same else now,
                renew_time=now,
                lease_transitions=(spec.lease_transitions or 0) + (0 if same or old is None else 1),
            ),
        )

    def _held_since(self, sent_at: float) -> None:
        assert self._lease is not None
        if self._deadline is not None and not self.leading:
            self._end_term()  # it lapsed while the renewal was under way: what was stopped has to start anew
        starts = self._deadline is None
        self._deadline = sent_at + self._lease_seconds - self._margin_seconds
        if not self.leading:
            self._deadline = None
            return
        if starts:
            self.transitions = self._lease.spec.lease_transitions or 0
            log.info("lease %s/%s: leading as %s", self._namespace, self._name, self.identity)
            self._over.clear()
            self._started.set()
            if self._on_started is not None:
                self._on_started()

    def _end_term(self) -> None:
        if self._deadline is None:
            return
        self._deadline = None
        log.info("lease %s/%s: no longer leading", self._namespace, self._name)
        self._started.clear()
        self._over.set()
        if self._on_stopped is not None:
            self._on_stopped()

    async def _release(self) -> None:
        """So that the next leader need not wait. Only if the lease is known to be ours; failure costs that wait."""
        lease = self._lease
        if lease is None or lease.holder != self.identity:
            return
        free = msgspec.structs.replace(lease.spec, holder_identity="", lease_duration_seconds=RELEASED_SECONDS)
        try:
            await write_lease(self._api, msgspec.structs.replace(lease, spec=free), self._call_seconds)
        except ApiError as error:
            log.info("lease %s/%s: not released: %s", self._namespace, self._name, error)


async def _settle(*futures: asyncio.Future[None]) -> None:
    """Wait for cancelled futures; what they raise besides their cancellation is raised."""
    for result in await asyncio.gather(*futures, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result
