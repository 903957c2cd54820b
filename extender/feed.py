"""From the API server's watches, and from single live reads, into the core.

One reflector per resource. A resource whose CRD is not installed counts as "there are none" and does not keep the
extender from getting ready; the reflector goes on asking, so that a CRD installed later is picked up.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from extender.core import Core
from extender.effects import Effect
from extender.live_reads import LiveReads
from extender.logs import line
from extender.metrics import Metrics
from extender.waiting import first_of
from kube.api.api import (
    NODES,
    POD_GROUPS,
    PODS,
    PRIORITY_CLASSES,
    RESERVATIONS,
    RESOURCE_QUOTAS,
    RUNTIME_CLASSES,
    Api,
    Resource,
)
from kube.api.clock import Clock
from kube.api.errors import ApiError, NotFound
from kube.api.reflector import Change, HasMetadata, Key, Reflector
from kube.objects.classes import PriorityClass, RuntimeClass
from kube.objects.meta import ObjectMeta
from kube.objects.nodes import Node
from kube.objects.pod_group import PodGroup
from kube.objects.pods import Pod
from kube.objects.reservation import GangReservation
from kube.objects.resource_quota import ResourceQuota

log = logging.getLogger(__name__)
T = TypeVar("T", bound=HasMetadata)


class Teller(Protocol):
    """`extender.effects_runner.EffectsRunner.tell`."""

    def __call__(self, method: Callable[..., list[Effect]], *args: Any) -> None: ...


class Source(Generic[T]):
    """One resource on its way into the core. optional: its CRD need not be installed."""

    def __init__(
        self,
        feed: "Feed",
        resource: Resource,
        type_: type[T],
        changed: Callable[[T], None],
        deleted: Callable[[ObjectMeta], None],
        *,
        namespace: str = "",
        optional: bool = False,
    ) -> None:
        self.name = resource.plural
        self.reflector = Reflector(
            feed.api,
            resource,
            type_,
            feed.clock,
            namespace=namespace,
            on_trouble=self._on_trouble,
            on_undecodable=_report_undecodable,
        )
        self.reflector.subscribe(self._on_change)
        self._changed = changed
        self._deleted = deleted
        self._optional = optional
        self._metrics = feed.metrics
        self._live = LiveReads()
        self._absent = asyncio.Event()
        """The CRD is not installed."""
        self._again = asyncio.Event()
        """A fresh list is asked for."""
        feed.metrics.watching(self.name, self.reflector.last_event_age)

    @property
    def settled(self) -> bool:
        """Complete, or known not to exist."""
        return self.reflector.synced.is_set() or self._absent.is_set()

    async def wait_settled(self) -> None:
        if not self.settled:
            await first_of(self.reflector.synced.wait(), self._absent.wait())

    async def run(self) -> None:
        while True:
            self._again.clear()
            # A reflector that is started anew lists anew, and finds what vanished meanwhile.
            await first_of(self.reflector.run(), self._again.wait())

    def list_again(self) -> None:
        """Not settled until a list that starts from now on is complete."""
        self.reflector.synced.clear()
        self._absent.clear()
        self._live.forget()
        self._again.set()

    def read_live(self, namespace: str, name: str, live: T | None) -> None:
        """What a single GET showed; None: there is none."""
        cached = self.reflector.get(namespace, name)
        gone, news = self._live.read(
            (namespace, name), live.metadata if live is not None else None, cached.metadata if cached else None
        )
        if gone:
            self._deleted(ObjectMeta(namespace=namespace, name=name, uid=gone))
        if news and live is not None:
            self._changed(live)

    def _on_change(self, change: Change, old: T | None, new: T | None) -> None:
        if not self._live.passes(change, old, new):
            return
        if new is not None:
            self._changed(new)
        elif old is not None:
            self._deleted(old.metadata)

    def _on_trouble(self, resource: Resource, error: ApiError | None) -> None:
        if error is None:
            log.info(line("watch works again", resource=self.name))
            return
        self._metrics.watch_restarts.labels(self.name).inc()
        if self._optional and isinstance(error, NotFound):
            if not self.settled:
                log.warning(line("not installed here, treated as none", resource=self.name, group=resource.group))
                self._absent.set()
            return
        log.warning(line("watch failed", resource=self.name, err=error))


class Feed:
    """All sources. Implements `extender.commit.LiveSink`. reservations_in: namespace of the GangReservations."""

    def __init__(
        self, api: Api, clock: Clock, core: Core, tell: Teller, metrics: Metrics, *, reservations_in: str
    ) -> None:
        self.api = api
        self.clock = clock
        self.metrics = metrics

        def to(method: Callable[[Any, float], list[Effect]]) -> Callable[[Any], None]:
            return partial(tell, method)

        def by_name(method: Callable[[str, float], list[Effect]]) -> Callable[[ObjectMeta], None]:
            return lambda gone: tell(method, gone.name)

        def by_key(method: Callable[[str, str, float], list[Effect]]) -> Callable[[ObjectMeta], None]:
            return lambda gone: tell(method, gone.namespace, gone.name)

        self._pods = Source(
            self,
            PODS,
            Pod,
            to(core.pod_changed),
            lambda gone: tell(core.pod_deleted, gone.namespace, gone.name, gone.uid),
        )
        self._nodes = Source(self, NODES, Node, to(core.node_changed), by_name(core.node_deleted))
        self._pod_groups = Source(
            self, POD_GROUPS, PodGroup, to(core.pod_group_changed), by_key(core.pod_group_deleted), optional=True
        )
        self._reservations = Source(
            self,
            RESERVATIONS,
            GangReservation,
            to(core.reservation_changed),
            by_key(core.reservation_deleted),
            namespace=reservations_in,
            optional=True,
        )
        self.sources: tuple[Source[Any], ...] = (
            Source(
                self,
                PRIORITY_CLASSES,
                PriorityClass,
                to(core.priority_class_changed),
                by_name(core.priority_class_deleted),
            ),
            Source(
                self, RUNTIME_CLASSES, RuntimeClass, to(core.runtime_class_changed), by_name(core.runtime_class_deleted)
            ),
            Source(
                self,
                RESOURCE_QUOTAS,
                ResourceQuota,
                to(core.resource_quota_changed),
                by_key(core.resource_quota_deleted),
            ),
            self._nodes,
            self._pod_groups,
            self._reservations,
            self._pods,
        )

    def missing(self) -> list[str]:
        """Resources whose cache is not complete yet."""
        return [source.name for source in self.sources if not source.settled]

    async def wait_synced(self) -> None:
        for source in self.sources:
            await source.wait_settled()

    def list_again(self) -> None:
        """Trust nothing that was read before now: leadership was not ours in between, or the process was stopped."""
        for source in self.sources:
            source.list_again()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for source in self.sources:
                group.create_task(source.run(), name=f"watch {source.name}")

    # --- extender.commit.LiveSink ---

    def live_node(self, name: str, node: Node | None) -> None:
        self._nodes.read_live("", name, node)

    def live_pod_group(self, namespace: str, name: str, group: PodGroup | None) -> None:
        self._pod_groups.read_live(namespace, name, group)

    def live_reservation(self, namespace: str, name: str, reservation: GangReservation | None) -> None:
        self._reservations.read_live(namespace, name, reservation)

    def live_pod(self, pod: Pod) -> None:
        self._pods.read_live(pod.metadata.namespace, pod.metadata.name, pod)

    def nodes_age(self) -> float:
        return self._nodes.reflector.last_event_age()


def _report_undecodable(resource: Resource, key: Key, problem: str) -> None:
    log.error(line("object not understood", kind=resource.kind, namespace=key[0], name=key[1], err=problem))
