"""One member cluster as a live thing: connection, watches, heartbeats, capacity. Each has its own tasks and timeouts,
so a member that hangs slows no other.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from dispatcher import placement
from dispatcher.dialects import detect_dialect
from dispatcher.documents import at, digits, mapping, maps, text
from dispatcher.hub_watches import MetadataOnly
from dispatcher.identity import HubIdentity
from dispatcher.member_caches import CopySeen, MemberCaches, PodSeen
from dispatcher.member_health import Health, Periods, Verdict, judge
from dispatcher.observations import MemberView
from dispatcher.options import Options
from kube.api.api import (
    CAPACITIES,
    CRDS,
    LEASES,
    NAMESPACES,
    PODS,
    PRIORITY_CLASSES,
    PYTORCH_JOBS,
    RESERVATIONS,
    Api,
    Resource,
)
from kube.api.clock import Clock
from kube.api.errors import ApiError
from kube.api.kubeconfig import ConfigRefused
from kube.api.leases import Heartbeat, Lease
from kube.api.reflector import Change, Reflector
from kube.objects.capacity import CapacityStatus, ClusterCapacity
from kube.objects.classes import PriorityClass
from kube.objects.member_cluster import MemberCluster
from kube.objects.meta import ObjectMeta
from kube.objects.names import (
    CAPACITY_NAME,
    EXTENDER_LEASE,
    HUB_ID,
    HUB_INCARNATION,
    HUB_LEASE,
    MANAGED,
    MUSTER_NAMESPACE,
)
from kube.objects.quantity import QuantityError
from kube.objects.reservation import GangReservation
from kube.objects.resources import Resources, parse_resources

log = logging.getLogger(__name__)

Connect = Callable[[str, bytes], Awaitable[AbstractAsyncContextManager[Api]]]
"""(member's name, kubeconfig) -> its API. Raises ConfigRefused."""


NO_CRD = "it has no PyTorchJob CRD: install a training operator"


class _Crd(msgspec.Struct):
    """Half a megabyte of schema: kept as bytes."""

    metadata: ObjectMeta
    spec: msgspec.Raw


class Member:
    """`run()` belongs in a TaskGroup. `configure` may be called at any time; a new kubeconfig reconnects.

    on_change(job id): something of that job changed here. on_state(name): connection or readiness did. on_report(name):
    its capacity report did.
    """

    def __init__(
        self,
        cluster: MemberCluster,
        *,
        connect: Connect,
        clock: Clock,
        options: Options,
        identity: HubIdentity,
        on_change: Callable[[str], None],
        on_state: Callable[[str], None],
        on_report: Callable[[str], None],
    ) -> None:
        self.cluster = cluster
        self.caches = MemberCaches(identity.hub_id, on_change)
        self.health = Health(accepted_uid=cluster.status.cluster_uid)
        self.version = cluster.status.version
        self.dialect = ""
        self.capacity = CapacityStatus()
        self._hub_lease: Heartbeat | None = None
        self._hub_lease_refused = False
        """The Lease shows another hub, or a later incarnation than ours."""
        self.shown_incarnation = 0
        """Highest that this member's hub Lease has shown: above ours proves that the hub was restored (rule 18)."""
        self.calls = asyncio.Semaphore(options.member_calls)
        self._connect = connect
        self._clock = clock
        self._options = options
        self._identity = identity
        self._on_state = on_state
        self._on_report = on_report
        self._kubeconfig: bytes | None = None
        self._changed = asyncio.Event()
        self._api: Api | None = None
        self._reflectors: tuple[Reflector[Any], ...] = ()
        self._priority_classes: Reflector[PriorityClass] | None = None
        self._namespaces: Reflector[MetadataOnly] | None = None
        self._verdict: Verdict | None = None
        self._not_ready_since = clock.monotonic()
        self._periods = Periods(
            silence_seconds=options.silence_seconds,
            heartbeat_seconds=options.heartbeat_seconds,
            steady_seconds=options.steady_seconds,
        )

    @property
    def name(self) -> str:
        return self.cluster.metadata.name

    @property
    def api(self) -> Api | None:
        """None while there is no connection to try."""
        return self._api

    def identify(self, identity: HubIdentity) -> None:
        """The hub goes on as another incarnation."""
        self._identity = identity

    def configure(self, cluster: MemberCluster, kubeconfig: bytes | None) -> None:
        namespaces_before = self.cluster.spec.create_namespaces
        self.cluster = cluster
        self.health.accepted_uid = cluster.status.cluster_uid
        if kubeconfig != self._kubeconfig or namespaces_before != cluster.spec.create_namespaces:
            self._kubeconfig = kubeconfig
            self._changed.set()

    def verdict(self) -> Verdict:
        """As of now; tells `on_state` when it is another than at the last look."""
        self.health.unsynced = self._unread()
        now = self._clock.monotonic()
        found = judge(self.health, now, self._periods)
        before, self._verdict = self._verdict, found
        if before is None or (before.ready, before.connection, before.reason) != (
            found.ready, found.connection, found.reason,
        ):  # fmt: skip
            if before is None or before.ready != found.ready:
                self._not_ready_since = now
            self._on_state(self.name)
        return found

    def _unread(self) -> tuple[str, ...]:
        if not self._reflectors:
            return ("everything",)
        unread = [
            f"{r.resource.plural} ({r.trouble})" if r.trouble else r.resource.plural
            for r in self._reflectors
            if not r.synced.is_set()
        ]
        # Nothing is done in a member before it has been told our incarnation: else it could not witness a restore.
        told = self._hub_lease is not None and self._hub_lease.renewed_at is not None
        return tuple(unread if told or self._hub_lease_refused else [*unread, f"Lease {HUB_LEASE}"])

    def view(self) -> MemberView:
        """Without anything of a job: connection and identity."""
        found = self.verdict()
        return MemberView(
            cluster=self.name, connection=found.connection, why=found.message, cluster_uid=self.health.cluster_uid
        )

    def placement(self) -> placement.Member:
        found = self.verdict()
        now = self._clock.monotonic()
        meta, spec = self.cluster.metadata, self.cluster.spec
        classes = self._priority_classes
        namespaces = self._namespaces
        return placement.Member(
            name=self.name,
            labels={**(meta.labels or {}), **spec.labels},
            taints=tuple(spec.taints),
            ready=found.ready,
            not_ready_seconds=0 if found.ready else now - self._not_ready_since,
            not_ready_reason=found.message,
            report_age=found.report_age,
            cordoned=spec.unschedulable,
            fenced=found.connection == "Fenced",
            replaced=found.connection == "Replaced",
            dialect=self.dialect,
            scheduler_name=self.capacity.scheduler_name,
            cluster_uid=self.health.cluster_uid,
            shapes=tuple(self.capacity.shapes),
            shapes_left_out=self.capacity.shapes_left_out,
            free=self.free(),
            includes=frozenset((i.job_id, i.epoch) for i in self.capacity.includes),
            namespaces=frozenset(n.metadata.name for n in namespaces) if namespaces is not None else None,
            priority_classes={c.metadata.name: c.value for c in classes} if classes is not None else None,
        )

    def free(self) -> Resources:
        return _resources(self.capacity.free)

    def total(self) -> Resources:
        """Of all its ready nodes, used or not."""
        return _resources(self.capacity.total)

    async def run(self) -> None:
        while True:
            self._changed.clear()
            if not await self._connected():
                self.verdict()
                await self._changed.wait()

    async def _connected(self) -> bool:
        """One connection, until the kubeconfig changes. False: there is nothing to try before it does."""
        self._reflectors = ()
        if self._kubeconfig is None:
            self.health.refused = (
                f"Secret {MUSTER_NAMESPACE}/{self.cluster.spec.kubeconfig_secret.name} with key kubeconfig is not there"
            )
            return False
        try:
            connection = await self._connect(self.name, self._kubeconfig)
        except ConfigRefused as refused:
            self.health.refused = str(refused)
            return False
        self.health.refused = ""
        async with connection as api:
            serving = asyncio.ensure_future(self._serve(api))
            changed = asyncio.ensure_future(self._changed.wait())
            try:
                await asyncio.wait({serving, changed}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._api = None
                changed.cancel()
                serving.cancel()
                results = await asyncio.gather(serving, changed, return_exceptions=True)
            for result in results:
                if isinstance(result, Exception):
                    raise result
        return True

    async def _serve(self, api: Api) -> None:
        self.caches.clear()
        managed = f"{MANAGED}=true"

        def reflector(resource: Resource, type_: Any, namespace: str = "", label: str = "", field: str = "") -> Any:
            return Reflector(
                api, resource, type_, self._clock, namespace=namespace, label_selector=label, field_selector=field
            )

        reservations: Reflector[GangReservation] = reflector(RESERVATIONS, GangReservation, MUSTER_NAMESPACE)
        copies: Reflector[CopySeen] = reflector(PYTORCH_JOBS, CopySeen, label=managed)
        pods: Reflector[PodSeen] = reflector(PODS, PodSeen, label=managed)
        capacities: Reflector[ClusterCapacity] = reflector(CAPACITIES, ClusterCapacity)
        leases: Reflector[Lease] = reflector(LEASES, Lease, MUSTER_NAMESPACE, field=f"metadata.name={EXTENDER_LEASE}")
        self._priority_classes = reflector(PRIORITY_CLASSES, PriorityClass)
        watched: list[Reflector[Any]] = [reservations, copies, pods, capacities, leases, self._priority_classes]
        self._namespaces = None
        if not self.cluster.spec.create_namespaces:
            self._namespaces = reflector(NAMESPACES, MetadataOnly)
            watched.append(self._namespaces)
            self._namespaces.subscribe(lambda *_: self._on_state(self.name))
        reservations.subscribe(self.caches.on_reservation)
        copies.subscribe(self.caches.on_copy)
        pods.subscribe(self.caches.on_pod)
        capacities.subscribe(self._on_capacity)
        leases.subscribe(self._on_lease)
        crds: Reflector[_Crd] = reflector(CRDS, _Crd, field=f"metadata.name={PYTORCH_JOBS.plural}.{PYTORCH_JOBS.group}")
        crds.subscribe(self._on_crd)
        watched.append(crds)
        self._reflectors = tuple(watched)
        self._api = api
        self._hub_lease = hub_lease = Heartbeat(
            api,
            self._clock,
            name=HUB_LEASE,
            namespace=MUSTER_NAMESPACE,
            holder=self._identity.hub_id,
            lease_seconds=self._options.hub_lease_seconds,
            every_seconds=self._options.hub_lease_renew_seconds,
            annotations=self._hub_annotations,
            call_seconds=self._options.member_call_seconds,
        )
        async with asyncio.TaskGroup() as tasks:
            for each in watched:
                tasks.create_task(each.run())
                tasks.create_task(self._look_when_synced(each))
            tasks.create_task(self._probe(api))
            tasks.create_task(self._learn(api))
            tasks.create_task(hub_lease.run())

    async def _look_when_synced(self, reflector: Reflector[Any]) -> None:
        await reflector.synced.wait()
        if reflector.resource is CRDS and not len(reflector):
            self.health.missing = NO_CRD
        self.verdict()

    async def _probe(self, api: Api) -> None:
        while True:
            try:
                body = await api.get(NAMESPACES, "kube-system", timeout=self._options.probe_seconds)
                uid = msgspec.json.decode(body, type=MetadataOnly).metadata.uid
            except (ApiError, msgspec.DecodeError) as error:
                self.health.failure = str(error)
            else:
                self.health.answered_at = self._clock.monotonic()
                self.health.failure, self.health.cluster_uid = "", uid
            self.verdict()
            await self._clock.sleep(self._options.probe_seconds)

    async def _learn(self, api: Api) -> None:
        """The member's version, again every `facts_seconds` (members are upgraded)."""
        while True:
            pause = self._options.reconnect_seconds
            try:
                version = mapping(msgspec.json.decode(await api.read_path("/version")))
                self.version = text(version.get("gitVersion"))
                pause = self._options.facts_seconds
            except (ApiError, msgspec.DecodeError) as error:
                log.info("%s: its version could not be read: %s", self.name, error)
            await self._clock.sleep(pause)

    def _on_crd(self, change: Change, old: "_Crd | None", new: "_Crd | None") -> None:
        """Which dialect of the job it speaks, from the moment its CRD says so: an operator may be replaced."""
        del change, old
        if new is None:
            self.dialect, self.health.missing = "", NO_CRD
        else:
            self.dialect = _dialect(new)
            self.health.missing = "" if self.dialect else "its PyTorchJob CRD has no schema that muster knows"
        self.verdict()

    def _on_capacity(self, _: Change, old: ClusterCapacity | None, new: ClusterCapacity | None) -> None:
        if new is None or new.metadata.name != CAPACITY_NAME:
            if old is not None and old.metadata.name == CAPACITY_NAME:
                self.capacity, self.health.has_report = CapacityStatus(), False
                self._on_report(self.name)
            return
        self.capacity = new.status
        self.health.has_report = True
        if old is not None:
            self.health.reported_at = self._clock.monotonic()
        self._on_report(self.name)

    def _on_lease(self, _: Change, old: Lease | None, new: Lease | None) -> None:
        """Only a renewal that was seen to happen counts: the first sight may be of an extender long dead."""
        if old is None or new is None or new.metadata.name != EXTENDER_LEASE:
            return
        if new.spec.renew_time != old.spec.renew_time:
            self.health.beat_at = self._clock.monotonic()
            self.verdict()

    def _hub_annotations(self, there: Mapping[str, str]) -> Mapping[str, str] | None:
        other = there.get(HUB_ID, "")
        if other and other != self._identity.hub_id:
            lease = f"{MUSTER_NAMESPACE}/{HUB_LEASE}"
            self._hub_lease_refused = True
            self.health.other_hub = f"it belongs to another hub ({other}); to take it over, remove Lease {lease} there"
            return None
        self.health.other_hub = ""
        shown = there.get(HUB_INCARNATION, "")
        self.shown_incarnation = max(self.shown_incarnation, digits(shown) or 0)
        self._hub_lease_refused = self.shown_incarnation > self._identity.incarnation
        if self._hub_lease_refused:
            return None
        return {HUB_ID: self._identity.hub_id, HUB_INCARNATION: str(self._identity.incarnation)}


def _dialect(crd: _Crd) -> str:
    for version in maps(at(msgspec.json.decode(crd.spec), ("versions",))):
        if version.get("name") == PYTORCH_JOBS.version:
            return detect_dialect(mapping(at(version, ("schema", "openAPIV3Schema"))))
    return ""


def _resources(quantities: dict[str, str]) -> Resources:
    try:
        return parse_resources(quantities)
    except QuantityError:
        log.warning("a capacity report has amounts that cannot be read: %s", sorted(quantities))
        return {}
