"""The dispatcher's life: campaign, lead, lose the lease, campaign again."""

import logging
from collections.abc import Callable

from dispatcher.cycle import Cycle
from dispatcher.identity import HubIdentity, take_over
from dispatcher.leadership import LeadersApi, NotLeading
from dispatcher.members import Connect
from dispatcher.metrics import Metrics
from dispatcher.options import Options
from kube.api.api import Api
from kube.api.clock import Clock
from kube.api.errors import ApiError
from kube.api.leases import LeaderElector
from kube.objects.names import DISPATCHER_LEASE, MUSTER_NAMESPACE

log = logging.getLogger(__name__)

ConnectAs = Callable[[Callable[[], bool]], Connect]
"""leading -> how to connect to members: their writes ask the lease too (rule 10)."""


class Dispatcher:
    """One candidate on an `Api` and a `Clock`. `run` is its life, ended by cancellation; the lease is released then."""

    def __init__(
        self, hub: Api, connect: ConnectAs, clock: Clock, options: Options, *, identity: str, version: str
    ) -> None:
        self.metrics = Metrics(version=version)
        self.cycle: Cycle | None = None
        """Of the present term; None while not leading."""
        self._hub = hub
        self._clock = clock
        self._options = options
        self._identity = identity
        self.elector = LeaderElector(
            hub,
            clock,
            name=DISPATCHER_LEASE,
            namespace=MUSTER_NAMESPACE,
            identity=identity,
            lease_seconds=options.lease_seconds,
            margin_seconds=options.lease_margin_seconds,
            retry_seconds=options.lease_retry_seconds,
        )
        self._leaders_hub = LeadersApi(hub, self._leading)
        self._connect = connect(self._leading)

    def _leading(self) -> bool:
        return self.elector.leading

    def not_ready(self) -> str:
        """For /readyz. A candidate that waits for another's lease is ready: it would take over."""
        if self.cycle is not None:
            return self.cycle.not_ready
        holder = self.elector.holder()
        return "" if holder and holder != self._identity else "campaigning"

    async def run(self) -> None:
        await self.elector.lead(self._term)

    async def _term(self) -> None:
        self.metrics.leader.set(1)
        try:
            identity = await self._identify()
            self.cycle = Cycle(
                self._leaders_hub,
                self._connect,
                self._clock,
                self._options,
                identity,
                self.metrics,
                instance=self._identity,
            )
            await self.cycle.run()
        finally:
            self.cycle = None
            self.metrics.leader.set(0)

    async def _identify(self) -> HubIdentity:
        while True:
            try:
                return await take_over(self._leaders_hub, timeout=self._options.hub_call_seconds)
            except NotLeading:
                await self._clock.sleep(self._options.lease_retry_seconds)  # the end of this term is on its way
            except ApiError as error:
                log.warning("the hub's identity cannot be read or written: %s", error)
                await self._clock.sleep(self._options.lease_retry_seconds)
