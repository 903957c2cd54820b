"""The extender put together: who talks to whom, and the life of the process.

Every part is a task of one group; one that fails ends the process with its traceback, and the supervisor (kubelet)
starts it anew: everything durable is in the API server.
"""

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from extender.api_effects import PodNudges, StatusWrites
from extender.arrival import ArrivalClock
from extender.commit import Committer
from extender.core import Core
from extender.effects import Effect
from extender.effects_runner import EffectsRunner
from extender.feed import Feed
from extender.hub_lease import HubLease
from extender.leadership import Leadership, follow
from extender.logs import line
from extender.metrics import CoreCollector, Metrics
from extender.options import Options
from extender.probes import ProbeServer
from extender.reporter import Reporter
from extender.server import ExtenderServer, ServerLimits
from extender.tls import ServerTls
from kube.api.api import Api
from kube.api.clock import Clock
from kube.api.events import EventRecorder
from kube.api.leases import LeaderElector, LeaseFollower
from kube.objects.names import EXTENDER_LEASE, MUSTER_NAMESPACE

log = logging.getLogger(__name__)

REPLY_SECONDS = 2.0
"""For replies to be written, and events, once everything is decided."""


class Extender:
    """One extender on an `Api` and a `Clock`. `run` is its life; set `stopping` to end it.

    tls: None serves plain HTTP to anybody (tests on loopback only).
    """

    def __init__(self, options: Options, api: Api, clock: Clock, tls: ServerTls | None, *, version: str) -> None:
        self.options = options
        self.stopping = asyncio.Event()
        self.port = self.metrics_port = 0
        """Where it listens, once `run` has begun."""
        self.metrics = Metrics(version=version)
        self.core = Core(options.core)
        self.metrics.registry.register(CoreCollector(self.core.metrics))
        self.leadership = _leadership(options, api, clock)
        self._tls = tls
        self._clock = clock
        self._recorder = EventRecorder(api, clock, component="muster-extender", instance=options.identity)
        self.feed = Feed(api, clock, self.core, self._tell, self.metrics, reservations_in=MUSTER_NAMESPACE)
        self.runner = EffectsRunner(
            self.core,
            clock,
            committer=Committer(
                api,
                clock,
                self.feed,
                self.metrics,
                leadership_left=self.leadership.left,
                post_timeout=options.bind_post_timeout,
                read_timeout=options.recheck_timeout,
                concurrency=options.bind_concurrency,
                shared_nodes=options.shared_nodes,
            ),
            statuses=StatusWrites(api, clock, timeout=options.api_timeout),
            nudges=PodNudges(api, clock, timeout=options.api_timeout),
            recorder=self._recorder,
            metrics=self.metrics,
            leadership_left=self.leadership.left,
            bind_hold=options.bind_hold,
        )
        self._reporter = Reporter(
            api, clock, self.runner.report, interval=options.report_interval, timeout=options.api_timeout
        )
        self._hub_lease = HubLease(
            api,
            clock,
            lambda: self.runner.tell(self.core.hub_lease_seen),
            every_seconds=options.hub_lease_poll,
            call_seconds=options.lease_timeout,
        )
        self._arrivals = ArrivalClock(clock)
        self._server = ExtenderServer(
            self.runner,
            clock,
            self._arrivals,
            self.metrics,
            ServerLimits(
                filter_deadline=options.filter_deadline,
                body_timeout=options.body_timeout,
                max_body=options.max_body,
                backlog=options.backlog,
                shutdown_timeout=REPLY_SECONDS,
            ),
            client_names=options.client_names if tls is not None else None,
        )
        self._probes = ProbeServer(self.not_ready, self.metrics.exposition)

    def not_ready(self) -> list[str]:
        """Why kube-scheduler's calls would not be decided now; empty when they are."""
        if self.stopping.is_set():
            return ["stopping"]
        if missing := self.feed.missing():
            return [f"cache not complete: {name}" for name in missing]
        if why := self.leadership.why_not():
            return [why]
        return [] if self.runner.deciding else ["about to decide"]

    async def run(self, *, listen: bool = True) -> None:
        """Until `stopping` is set, then in order: no new connection, every held call answered with an error, Bindings
        under way finished, the lease let go. Raises ExceptionGroup when a part fails.

        listen=False: no sockets; a simulated scheduler asks `runner` directly.
        """
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {name: group.create_task(work, name=name) for name, work in self._parts().items()}
                if listen:
                    await self._listen()
                await self.stopping.wait()
                log.info("stopping")
                await self._server.stop_accepting()
                tasks["life"].cancel()
                await self._within(self.options.drain_timeout, self.runner.drain())
                await self._within(REPLY_SECONDS, self._recorder.flush())
                await self._server.stop()
                for task in tasks.values():
                    task.cancel()
        finally:
            await self._server.stop()
            await self._probes.stop()

    async def _listen(self) -> None:
        self.metrics_port = await self._probes.start(*self.options.metrics_listen)
        context = self._tls.context if self._tls is not None else None
        self.port = await self._server.start(*self.options.listen, context)
        log.info(line("serving", port=self.port, metrics=self.metrics_port, identity=self.options.identity))

    def _parts(self) -> dict[str, Coroutine[Any, Any, None]]:
        parts = {
            "effects": self.runner.run(),
            "arrivals": self._arrivals.run(),
            "watches": self.feed.run(),
            "leadership": self.leadership.run(),
            "life": follow(self.leadership, self.feed, self.runner, quiet=self._quiet, on_leading=self._on_leading),
            "hub lease": self._hub_lease.run(),
            "reporter": self._report_changes(),
            "events": self._recorder.run(),
        }
        if self._tls is not None:
            parts["tls"] = self._tls.follow(self._clock, self.options.tls_reload)
        return parts

    async def _report_changes(self) -> None:
        while True:
            await self.runner.changed.wait()
            self.runner.changed.clear()
            await self._reporter.publish()

    async def _quiet(self) -> None:
        await self._clock.sleep(self.options.bind_post_timeout)

    def _tell(self, method: Callable[..., list[Effect]], *args: Any) -> None:
        self.runner.tell(method, *args)  # type: ignore[arg-type]

    def _on_leading(self, leading: bool) -> None:
        self.metrics.leader.set(1 if leading else 0)
        if leading:
            # The caches are here to stay: out of every later collection with them (tens of ms with 20,000 pods).
            gc.collect()
            gc.freeze()

    async def _within(self, seconds: float, work: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(seconds):
                await work
        except TimeoutError:
            log.warning(line("gave up waiting while stopping", seconds=seconds))


def _leadership(options: Options, api: Api, clock: Clock) -> Leadership:
    elector = LeaderElector(
        api,
        clock,
        name=EXTENDER_LEASE,
        namespace=MUSTER_NAMESPACE,
        identity=options.identity,
        lease_seconds=options.lease_seconds,
        margin_seconds=options.lease_margin,
        retry_seconds=options.lease_renew,
        call_seconds=options.lease_timeout,
    )
    follower = None
    if options.scheduler_lease is not None:
        namespace, name = options.scheduler_lease
        follower = LeaseFollower(
            api,
            clock,
            name=name,
            namespace=namespace,
            every_seconds=options.scheduler_lease_poll,
            call_seconds=options.lease_timeout,
        )
    return Leadership(clock, elector, follower, options.scheduler_identity)
