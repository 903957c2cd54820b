"""The whole dispatcher in one process: a simulated hub, members that play by the protocol, virtual time."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from typing import Any

import msgspec

from dispatcher.admission import Admission
from dispatcher.options import Options
from dispatcher.program import Dispatcher
from kube.api.api import (
    BINDINGS,
    EVENTS,
    MEMBER_CLUSTERS,
    NAMESPACES,
    POLICIES,
    PYTORCH_JOBS,
    QUOTA_TREES,
    SECRETS,
    Api,
)
from kube.api.errors import NotFound
from kube.objects.resources import parse_resources
from tests.simulation.apiserver import ApiServer
from tests.simulation.apiserver_client import SimulatedApi
from tests.simulation.apiserver_controllers import Controllers
from tests.simulation.apiserver_faults import Faults
from tests.simulation.apiserver_store import Doc, kind_of
from tests.simulation.clock import VirtualClock, until
from tests.simulation.member_stand_in import GPU, RUN_FOR, MemberStandIn

MAX_JOBS = "kube-queue/max-jobs"


class WholeHub:
    """Use `running()`. One dispatcher at a time; `restart` ends it at once (its process is killed) and starts another.

    members: name -> (nodes, GPUs per node).
    """

    def __init__(self, *, members: dict[str, tuple[int, int]], seed: int = 0, **options: Any) -> None:
        self.rng = Random(seed)
        self.hub = ApiServer("hub", rng=self.rng)
        self.members: dict[str, MemberStandIn] = {}
        self.options = msgspec.structs.replace(Options(), settle_seconds=5.0, **options)
        self.dispatcher: Dispatcher | None = None
        self._apis: list[SimulatedApi] = []
        self._life: asyncio.Task[None] | None = None
        self._terms = 0
        for name, (nodes, gpus) in members.items():
            server = ApiServer(name, rng=self.rng)
            self.members[name] = MemberStandIn(server, nodes=nodes, gpus=gpus)
            self.hub.create(
                SECRETS,
                {"metadata": {"name": name}, "data": {"kubeconfig": base64.b64encode(b"kc").decode()}},
                "muster-system",
            )
            self.hub.create(
                MEMBER_CLUSTERS,
                {"metadata": {"name": name}, "spec": {"kubeconfigSecret": {"name": name}}},
                "",
            )

    @asynccontextmanager
    async def running(self) -> AsyncIterator["WholeHub"]:
        async with Controllers(self.hub, self.rng).running():
            members = [asyncio.ensure_future(member.run()) for member in self.members.values()]
            self.start()
            try:
                yield self
            finally:
                await self.kill()
                for task in members:
                    task.cancel()
                await asyncio.gather(*members, return_exceptions=True)

    def start(self) -> None:
        self._terms += 1
        self._apis = []
        self.dispatcher = Dispatcher(
            self._api(self.hub), lambda _: self._connect, VirtualClock(), self.options,
            identity=f"dispatcher-{self._terms}", version="simulated",
        )  # fmt: skip
        self._life = asyncio.ensure_future(self.dispatcher.run())

    async def kill(self) -> None:
        """kill -9: nothing it still says is heard."""
        assert self._life is not None
        for api in self._apis:
            api.kill()
        self._life.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await self._life
        self.dispatcher = None

    async def restart(self) -> float:
        """Returns the virtual seconds until decisions are made again."""
        await self.kill()
        self.start()
        return await self.ready()

    async def ready(self) -> float:
        return await until(
            lambda: (
                self.dispatcher is not None
                and self.dispatcher.cycle is not None
                and not self.dispatcher.cycle.not_ready
            )
        )

    def _api(self, server: ApiServer) -> SimulatedApi:
        # Watches end often on real servers; here that only costs steps.
        api = SimulatedApi(server, user="muster-dispatcher", faults=Faults(self.rng), watch_seconds=3600.0)
        self._apis.append(api)
        return api

    async def _connect(self, name: str, _: bytes) -> AbstractAsyncContextManager[Api]:
        @asynccontextmanager
        async def opened() -> AsyncIterator[Api]:
            yield self._api(self.members[name].server)

        return opened()

    # What users do

    def namespace(self, name: str, *, queued: bool = True) -> None:
        if self.hub.doc(NAMESPACES, name) is None:
            self.hub.create(NAMESPACES, {"metadata": {"name": name}}, "")
        spec: Doc = {
            "placement": {"replicaScheduling": {"replicaSchedulingType": "Divided", "customSchedulingType": "Gang"}},
            "resourceSelectors": [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}],
        }
        if queued:
            spec["suspension"] = {"scheduling": True}
        self.hub.create(POLICIES, {"metadata": {"name": "policy"}, "spec": spec}, name)

    def tree(self, root: Doc, name: str = "elasticquotatree") -> None:
        if self.hub.doc(QUOTA_TREES, name, "kube-system") is None:
            self.hub.create(QUOTA_TREES, {"metadata": {"name": name}, "spec": {"root": root}}, "kube-system")
        else:
            known = self.hub.existing(QUOTA_TREES, name, "kube-system")
            known["spec"] = {"root": root}
            self.hub.replace(QUOTA_TREES, name, known, "kube-system")

    def submit(
        self, namespace: str, name: str, *, pods: int = 1, gpus: int = 1, run_for: float | None = None, **spec: Any
    ) -> None:
        """A Master alone, or with Workers, `gpus` each."""
        self.hub.create(PYTORCH_JOBS, job(namespace, name, pods=pods, gpus=gpus, run_for=run_for, **spec), namespace)

    def delete(self, namespace: str, name: str) -> None:
        self.hub.delete(PYTORCH_JOBS, name, namespace)

    def edit(self, namespace: str, name: str, patch: Doc) -> None:
        self.hub.patch(PYTORCH_JOBS, name, patch, namespace)

    # What is

    def binding(self, namespace: str, name: str) -> Doc | None:
        return self.hub.doc(BINDINGS, f"{name}-pytorchjob", namespace)

    def _bindings(self, namespace: str = "") -> list[Doc]:
        """As they are in the store, to be read only."""
        return [stored.doc for _, stored in self.hub.store.all(kind_of(BINDINGS), namespace)]

    def phase(self, namespace: str, name: str) -> str:
        return str((self.binding(namespace, name) or {}).get("status", {}).get("phase", ""))

    def is_in(self, phase: str, namespace: str, name: str) -> bool:
        return self.phase(namespace, name) == phase

    def message(self, namespace: str, name: str) -> str:
        conditions = (self.binding(namespace, name) or {}).get("status", {}).get("conditions", [])
        return next((str(c.get("message", "")) for c in conditions if c["type"] == "Scheduled"), "")

    def in_phase(self, phase: str, namespace: str = "") -> list[str]:
        return sorted(
            doc["spec"]["job"]["name"]
            for doc in self._bindings(namespace)
            if doc.get("status", {}).get("phase") == phase
        )

    def events(self, reason: str) -> list[Doc]:
        return [doc for doc in self.hub.docs(EVENTS) if doc.get("reason") == reason]

    @property
    def admission(self) -> Admission:
        assert self.dispatcher is not None
        assert self.dispatcher.cycle is not None
        return self.dispatcher.cycle.admission

    def charged(self) -> dict[str, int]:
        """Full queue name -> GPUs charged by all bindings below it, from the durable records alone."""
        used: dict[str, int] = {}
        for doc in self._bindings():
            charge = doc["spec"].get("charge")
            if charge is None:
                continue
            amount = parse_resources(charge.get("amounts", {})).get(GPU, 0)
            for depth in range(1, len(charge["path"]) + 1):
                path = "/".join(charge["path"][:depth])
                used[path] = used.get(path, 0) + amount
        return used


def job(
    namespace: str, name: str, *, pods: int = 1, gpus: int = 1, run_for: float | None = None,
    labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, priority_class: str = "",
    **run_policy: Any,
) -> Doc:  # fmt: skip
    def role(replicas: int) -> Doc:
        container = {
            "name": "pytorch",
            "image": "x",
            "resources": {"requests": {GPU: str(gpus)}, "limits": {GPU: str(gpus)}},
        }
        spec: Doc = {"containers": [container]}
        if priority_class:
            spec["priorityClassName"] = priority_class
        notes = {} if run_for is None else {RUN_FOR: str(run_for)}
        return {"replicas": replicas, "template": {"metadata": {"annotations": notes}, "spec": spec}}

    roles = {"Master": role(1)} | ({"Worker": role(pods - 1)} if pods > 1 else {})
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}, "annotations": annotations or {}},
        "spec": {"runPolicy": {"cleanPodPolicy": "None", **run_policy}, "pytorchReplicaSpecs": roles},
    }


def node(name: str, *children: Doc, namespaces: list[str] | None = None, **limits: Any) -> Doc:
    """min, max: GPUs; jobs: max-jobs."""
    found: Doc = {"name": name}
    if "min" in limits:
        found["min"] = {GPU: limits["min"]}
    if "max" in limits:
        found["max"] = {GPU: limits["max"]}
    if "jobs" in limits:
        found.setdefault("max", {})[MAX_JOBS] = limits["jobs"]
    if namespaces is not None:
        found["namespaces"] = namespaces
    if children:
        found["children"] = list(children)
    return found


async def gone(condition: Callable[[], Any], within: float = 600.0) -> None:
    def is_gone() -> bool:
        with contextlib.suppress(NotFound):
            return not condition()
        return True

    await until(is_gone, within)
