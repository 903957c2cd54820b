"""Commits: the live reads before one, and the POST of each Binding with its time fence.

The fence: right before each POST, on a clock that runs while the process is stopped, the call's own deadline and the
leadership must both have more than the POST's timeout left. Else kube-scheduler may have given the call up (and the
room away), or somebody else may decide, before the API server has the Binding.

Where another scheduler binds pods onto the same nodes (shared_nodes; the managed install), each commit also lists the
pods of its nodes, so that a watch that lags hides nothing. A window remains that nobody but the kubelet can close: from
that list until our Bindings are stored (two round trips; for a pod of no gang, from the watch), and from the other
scheduler's look at the node until its Binding is stored (milliseconds; as long as its volumes take if it has any). A
kubelet refuses the later pod (OutOfcpu and the like); muster_overcommitted_by_others_total counts what came through.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from extender.effects import Binding, Outcome, Recheck
from extender.metrics import Metrics
from kube.api.api import NODES, POD_GROUPS, PODS, RESERVATIONS, Api, Resource
from kube.api.clock import Clock
from kube.api.documents import raw_page
from kube.api.errors import AlreadyExists, ApiError, Conflict, NotFound
from kube.api.writes import read
from kube.objects.meta import ObjectMeta
from kube.objects.nodes import Node
from kube.objects.pod_group import PodGroup
from kube.objects.pods import Pod
from kube.objects.reservation import GangReservation

T = TypeVar("T")


class LiveSink(Protocol):
    """Where live reads go (`extender.feed.Feed`): the ordinary feed of the core, guarded against older watch events."""

    def live_node(self, name: str, node: Node | None) -> None: ...

    def live_pod_group(self, namespace: str, name: str, group: PodGroup | None) -> None: ...

    def live_reservation(self, namespace: str, name: str, reservation: GangReservation | None) -> None: ...

    def live_pod(self, pod: Pod) -> None: ...

    def nodes_age(self) -> float:
        """Seconds since the watch of nodes last proved to be alive."""
        ...


class _BoundPodSpec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _BoundPod(msgspec.Struct):
    metadata: ObjectMeta
    spec: _BoundPodSpec


_decode_whole_pod = msgspec.json.Decoder(Pod).decode
_decode_pod = msgspec.json.Decoder(_BoundPod).decode
_encode = msgspec.json.Encoder().encode


class Committer:
    """post_timeout: of one Binding POST, seconds. read_timeout: of one live read.

    concurrency: POSTs under way at once; below the client's connections, so that the fence is passed with a
    connection at hand. few_nodes: up to this many nodes of a gang are read live; more are taken from the cache while
    the watch of nodes has been heard within trust_watch seconds. shared_nodes: other schedulers bind pods there too.
    """

    def __init__(
        self,
        api: Api,
        clock: Clock,
        sink: LiveSink,
        metrics: Metrics,
        *,
        leadership_left: Callable[[], float],
        post_timeout: float,
        read_timeout: float,
        concurrency: int = 48,
        few_nodes: int = 16,
        trust_watch: float = 15.0,
        shared_nodes: bool = False,
    ) -> None:
        self._api = api
        self._clock = clock
        self._sink = sink
        self._metrics = metrics
        self._leadership_left = leadership_left
        self._post_timeout = post_timeout
        self._read_timeout = read_timeout
        self._few_nodes = few_nodes
        self._trust_watch = trust_watch
        self._shared_nodes = shared_nodes
        self._turns = asyncio.Semaphore(concurrency)

    async def post(self, binding: Binding) -> tuple[Outcome, str]:
        """One POST to pods/NAME/binding. Never raises ApiError; the text is "" with success."""
        body = binding_body(binding)
        async with self._turns:
            # Nothing may be awaited between the fence and the request.
            sent_at = self._clock.monotonic()
            if late := self._fence(binding, sent_at):
                outcome, reason = Outcome.NOT_SENT, late
            else:
                outcome, reason = await self._send(binding, body)
            self._metrics.posted(outcome, self._clock.monotonic() - sent_at)
        if outcome is Outcome.CONFLICT:
            outcome, reason = await self._where_is(binding, reason)
        return outcome, reason

    async def recheck(self, recheck: Recheck) -> str:
        """Reads what the commit stands on and feeds it. Returns "" or why a read was not answered."""
        reads = []
        if len(recheck.nodes) <= self._few_nodes or self._sink.nodes_age() > self._trust_watch:
            reads += [self._read_node(name) for name in recheck.nodes]
        if recheck.pod_group is not None:
            reads.append(self._read_pod_group(*recheck.pod_group))
        if recheck.reservation is not None:
            reads.append(self._read_reservation(*recheck.reservation))
        if self._shared_nodes:
            reads += [self._read_pods_on(name) for name in recheck.nodes]
        failures = [failure for failure in await asyncio.gather(*reads) if failure]
        return failures[0] if failures else ""

    def _fence(self, binding: Binding, now: float) -> str:
        if binding.deadline - now <= self._post_timeout:
            return "too late to post the binding within this call"
        if self._leadership_left() <= self._post_timeout:
            return "this extender does not lead any more"
        return ""

    async def _send(self, binding: Binding, body: bytes) -> tuple[Outcome, str]:
        try:
            await self._api.create(
                PODS, body, binding.namespace, name=binding.name, subresource="binding", timeout=self._post_timeout
            )
        except (AlreadyExists, Conflict) as error:
            return Outcome.CONFLICT, error.message
        except NotFound as error:
            return Outcome.GONE, error.message
        except ApiError as error:
            return Outcome.UNKNOWN if error.uncertain else Outcome.REJECTED, str(error)
        return Outcome.BOUND, ""

    async def _where_is(self, binding: Binding, reason: str) -> tuple[Outcome, str]:
        """After a 409: is this very pod on this very node already (kubernetes#96579)?"""
        try:
            found = _decode_pod(await self._api.get(PODS, binding.name, binding.namespace, timeout=self._read_timeout))
        except NotFound as error:
            return Outcome.GONE, error.message
        except ApiError as error:
            # It may be there from an earlier POST of ours: only the watch can tell now.
            return Outcome.UNKNOWN, f"{reason}; reading it again: {error}"
        if found.metadata.uid != binding.uid:
            return Outcome.GONE, f"another pod has its name now: {reason}"
        if found.spec.node_name == binding.node:
            return Outcome.ALREADY_THERE, ""
        return Outcome.CONFLICT, reason

    async def _read_node(self, name: str) -> str:
        node, failure = await self._read(NODES, Node, name)
        if not failure:
            self._sink.live_node(name, node)
        return failure

    async def _read_pod_group(self, namespace: str, name: str) -> str:
        group, failure = await self._read(POD_GROUPS, PodGroup, name, namespace)
        if not failure:
            self._sink.live_pod_group(namespace, name, group)
        return failure

    async def _read_reservation(self, namespace: str, name: str) -> str:
        reservation, failure = await self._read(RESERVATIONS, GangReservation, name, namespace)
        if not failure:
            self._sink.live_reservation(namespace, name, reservation)
        return failure

    async def _read_pods_on(self, node: str) -> str:
        """Those that take room there. One that is not understood is left to the watch, which reports it."""
        where = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
        async with self._turns:
            try:
                page = raw_page.decode(await self._api.list(PODS, field_selector=where, timeout=self._read_timeout))
            except (ApiError, msgspec.ValidationError) as error:
                return f"listing the pods of node {node}: {error}"
        for item in page.items or ():
            with contextlib.suppress(msgspec.ValidationError):
                self._sink.live_pod(_decode_whole_pod(item))
        return ""

    async def _read(self, resource: Resource, type_: type[T], name: str, namespace: str = "") -> tuple[T | None, str]:
        """(object, "") or (None, "") when there is none, else (None, why it could not be read)."""
        async with self._turns:
            try:
                return await read(self._api, resource, type_, name, namespace, timeout=self._read_timeout), ""
            except (ApiError, msgspec.ValidationError) as error:
                return None, f"reading {resource.kind} {name}: {error}"


def binding_body(binding: Binding) -> bytes:
    """core/v1 Binding; the API server refuses it (409) when the pod of that name has another uid."""
    return _encode(
        {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": binding.name, "namespace": binding.namespace, "uid": binding.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": binding.node},
        }
    )
