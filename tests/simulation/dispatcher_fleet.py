"""The whole hub side in one process on virtual time: a simulated hub, played members, real dispatchers. What the
protocol promises is watched at every write; `violations` collects what was broken.
"""

import asyncio
import base64
import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from random import Random
from typing import Any

from dispatcher.leadership import LeadersApi
from dispatcher.members import Connect
from dispatcher.options import Options
from dispatcher.program import Dispatcher
from kube.api.api import (
    BINDINGS,
    EVENTS,
    MEMBER_CLUSTERS,
    POD_GROUPS,
    PODS,
    POLICIES,
    PYTORCH_JOBS,
    QUOTA_TREES,
    RESERVATIONS,
    SECRETS,
    Api,
)
from kube.api.kubeconfig import ConfigRefused
from kube.objects.names import EPOCH, JOB_ID, MUSTER_NAMESPACE
from tests.simulation.apiserver import ApiServer
from tests.simulation.apiserver_client import SimulatedApi
from tests.simulation.apiserver_controllers import Controllers
from tests.simulation.apiserver_faults import Faults
from tests.simulation.apiserver_store import Change, Doc
from tests.simulation.clock import VirtualClock, until
from tests.simulation.dispatcher_member import RUN_FOR, PlayedMember

QUICK = Options(settle_seconds=2.0, steady_seconds=1.0)
WANTED = tuple[str, int]


class PlayedFleet:
    """Use as `async with PlayedFleet(rng, {"c1": 4, "c2": 4}) as fleet`."""

    def __init__(self, rng: Random, members: dict[str, int], *, options: Options = QUICK) -> None:
        self.rng = rng
        self.options = options
        self.hub = ApiServer("hub", rng=rng)
        self.members = {name: PlayedMember(ApiServer(name, rng=rng), slots) for name, slots in members.items()}
        self.violations: list[str] = []
        self.faults: dict[str, Faults] = {}
        """Of the latest dispatcher's clients, by server."""
        self.clients: dict[str, SimulatedApi] = {}
        self.dispatcher: Dispatcher | None = None
        self._task: asyncio.Task[None] | None = None
        self._stack = contextlib.AsyncExitStack()
        self._count = 0
        self._scheduled: set[WANTED] = set()
        self._charges: dict[str, int] = {}
        self._ended: set[str] = set()
        self._watch_invariants()

    async def __aenter__(self) -> "PlayedFleet":
        for server in (self.hub, *(m.server for m in self.members.values())):
            await self._stack.enter_async_context(Controllers(server, self.rng).running())
        for name, member in self.members.items():
            self._join(name)
            task = asyncio.ensure_future(member.run())
            self._stack.push_async_callback(_end, task)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.kill()
        await self._stack.aclose()

    def _join(self, name: str) -> None:
        kubeconfig = base64.b64encode(name.encode()).decode()
        secret = {"metadata": {"name": f"{name}-kubeconfig"}, "data": {"kubeconfig": kubeconfig}}
        self.hub.create(SECRETS, secret, MUSTER_NAMESPACE)
        spec = {"kubeconfigSecret": {"name": f"{name}-kubeconfig"}}
        self.hub.create(MEMBER_CLUSTERS, {"metadata": {"name": name}, "spec": spec}, "")

    # --- dispatchers

    async def start(self, *, rates: dict[Any, float] | None = None) -> Dispatcher:
        """Another dispatcher process; the one before goes on if it was not killed."""
        self._count += 1
        self.faults = {name: Faults(self.rng, rates=rates) for name in ("hub", *self.members)}
        clients = {name: SimulatedApi(m.server, "dispatcher", self.faults[name]) for name, m in self.members.items()}
        hub = SimulatedApi(self.hub, "dispatcher", self.faults["hub"])
        self.clients = {"hub": hub, **clients}

        def connect_as(leading: Callable[[], bool]) -> Connect:
            async def connect(_: str, kubeconfig: bytes) -> AbstractAsyncContextManager[Api]:
                if kubeconfig.decode() not in clients:
                    raise ConfigRefused("users[0].user.exec runs a program here: use a token or a client certificate")
                return nullcontext(LeadersApi(clients[kubeconfig.decode()], leading))

            return connect

        self.dispatcher = Dispatcher(
            hub, connect_as, VirtualClock(), self.options, identity=f"d{self._count}", version="test"
        )
        self._task = asyncio.ensure_future(self.dispatcher.run())
        return self.dispatcher

    async def kill(self) -> None:
        """SIGKILL: nothing of it is heard any more. What it has sent arrives."""
        for client in self.clients.values():
            client.kill()
        if self._task is not None:
            await _end(self._task)
        self.clients, self._task, self.dispatcher = {}, None, None

    async def ready(self, within: float = 60.0) -> None:
        """The latest dispatcher leads and decides (one that was killed leaves its lease behind)."""
        await self.until(
            lambda: (
                self.dispatcher is not None and self.dispatcher.cycle is not None and not self.dispatcher.not_ready()
            ),
            within,
        )

    async def members_ready(self) -> None:
        """Every member has shown a heartbeat and a report."""
        await self.ready()
        await self.until(lambda: all(self.member_ready(name) for name in self.members))

    def member_ready(self, name: str) -> bool:
        conditions = self.hub.existing(MEMBER_CLUSTERS, name).get("status", {}).get("conditions", [])
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    async def until(self, condition: Callable[[], bool], within: float = 120.0) -> float:
        """Also fails as soon as the dispatcher has died of a bug."""

        def checked() -> bool:
            if self._task is not None and self._task.done():
                self._task.result()
                raise AssertionError("the dispatcher ended")
            assert not self.violations, self.violations[0]
            return condition()

        return await until(checked, within, 0.05)

    # --- users

    def policy(self, name: str = "gang", *, queued: bool = False, **spec: Any) -> None:
        document = {
            "metadata": {"name": name},
            "spec": {
                "resourceSelectors": [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}],
                "placement": {
                    "replicaScheduling": {"replicaSchedulingType": "Divided", "customSchedulingType": "Gang"}
                },
                **({"suspension": {"scheduling": True}} if queued else {}),
                **spec,
            },
        }
        self.hub.create(POLICIES, document, "default")

    def quota_tree(self, max_jobs: int) -> None:
        big = {"cpu": 1000, "memory": "1000Gi", "kube-queue/max-jobs": 10000000000}
        tree = {
            "metadata": {"name": "elasticquotatree"},
            "spec": {
                "root": {
                    "name": "root", "max": big, "min": big,
                    "children": [
                        {"name": "team", "max": {"kube-queue/max-jobs": max_jobs}, "namespaces": ["default"]}
                    ],
                }
            },
        }  # fmt: skip
        self.hub.create(QUOTA_TREES, tree, "kube-system")

    def submit(self, name: str, workers: int = 1, *, run_for: float | None = None, **spec: Any) -> None:
        """A job of one master and `workers` workers, a CPU each."""
        self.hub.create(PYTORCH_JOBS, job(name, workers, run_for=run_for, **spec), "default")

    def delete(self, name: str) -> None:
        self.hub.delete(PYTORCH_JOBS, name, "default")

    # --- looking

    def job(self, name: str) -> Doc | None:
        return self.hub.doc(PYTORCH_JOBS, name, "default")

    def state(self, name: str) -> str:
        found = self.job(name) or {}
        conditions = found.get("status", {}).get("conditions") or [{}]
        return str(conditions[-1].get("type", ""))

    def binding(self, name: str) -> Doc | None:
        return self.hub.doc(BINDINGS, f"{name}-pytorchjob", "default")

    def attempt(self, name: str) -> Doc:
        return ((self.binding(name) or {}).get("spec") or {}).get("attempt") or {}

    def condition(self, name: str, type_: str) -> Doc:
        conditions = ((self.binding(name) or {}).get("status") or {}).get("conditions") or []
        return next((c for c in conditions if c["type"] == type_), {})

    def events(self, reason: str) -> list[str]:
        return [event["message"] for event in self.hub.docs(EVENTS) if event.get("reason") == reason]

    def where(self, name: str) -> list[str]:
        """Members that have a copy."""
        return [n for n, m in self.members.items() if m.server.doc(PYTORCH_JOBS, name, "default") is not None]

    def left(self) -> list[str]:
        """Everything of ours that is still anywhere."""
        found = [f"hub binding {b['metadata']['name']}" for b in self.hub.docs(BINDINGS)]
        for name, member in self.members.items():
            for resource in (RESERVATIONS, PYTORCH_JOBS, POD_GROUPS, PODS):
                found += [f"{name} {resource.plural} {d['metadata']['name']}" for d in member.server.docs(resource)]
        return found

    # --- what the protocol promises

    def _watch_invariants(self) -> None:
        self.hub.observe(self._hub_changed)
        for name, member in self.members.items():
            member.server.observe(lambda change, name=name: self._member_changed(name, change))  # type: ignore[misc]

    def _hub_changed(self, change: Change) -> None:
        if change.kind != (BINDINGS.group, BINDINGS.plural):
            return
        uid = change.last.doc["metadata"]["uid"]
        if change.new is None:
            self._charges.pop(uid, None)
            self._no_pod_runs(change.last.doc, "its record was removed")
            return
        spec = change.new.doc["spec"]
        attempt = spec.get("attempt") or {}
        if attempt.get("state") == "Scheduled":
            self._scheduled.add((spec["id"], attempt["epoch"]))
        charged = 1 if spec.get("charge") else 0
        before = self._charges.get(uid, 0)
        self._charges[uid] = charged
        if before and not charged:
            self._no_pod_runs(change.new.doc, "quota was released")

    def _no_pod_runs(self, binding: Doc, what: str) -> None:
        running = [
            f"{name}/{pod['metadata']['name']}"
            for name, member in self.members.items()
            for pod in member.server.docs(PODS)
            if _annotations(pod).get(JOB_ID) == binding["spec"]["id"] and _running(pod)
        ]
        if running:
            self.violations.append(f"{what} while {running} run")

    def _member_changed(self, name: str, change: Change) -> None:
        if change.new is None:
            return
        doc = change.new.doc
        if change.kind == (RESERVATIONS.group, RESERVATIONS.plural):
            spec = doc["spec"]
            if spec.get("state") == "Dispatched" and (spec["id"], spec["epoch"]) not in self._scheduled:
                self.violations.append(f"{name}: {spec['id']} epoch {spec['epoch']} dispatched before Scheduled")
        elif change.kind == (PYTORCH_JOBS.group, PYTORCH_JOBS.plural):
            mine = _identity(doc)
            if mine and mine not in self._scheduled:
                self.violations.append(f"{name}: {mine} was posted before Scheduled")
            conditions = doc.get("status", {}).get("conditions") or [{}]
            if mine and conditions[-1].get("type") in ("Succeeded", "Failed"):
                self._ended.add(mine[0])
        elif change.kind == (PODS.group, PODS.plural):
            self._pod_changed(name, doc, change.old.doc if change.old else None)

    def _pod_changed(self, name: str, pod: Doc, old: Doc | None) -> None:
        mine = _identity(pod)
        if mine is None or not _running(pod) or (old is not None and _running(old)):
            return
        if mine[0] in self._ended:
            self.violations.append(f"{name}: {mine} runs again after its end")
        for other, member in self.members.items():
            for there in member.server.docs(PODS):
                theirs = _identity(there)
                if theirs and theirs[0] == mine[0] and _running(there) and (other, theirs) != (name, mine):
                    self.violations.append(f"{mine} runs in {name} while {theirs} runs in {other}")


def job(name: str, workers: int, *, run_for: float | None = None, **spec: Any) -> Doc:
    pod = {
        "spec": {
            "containers": [{"name": "pytorch", "image": "x", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]
        }
    }
    roles: Doc = {"Master": {"replicas": 1, "restartPolicy": "Never", "template": pod}}
    if workers:
        roles["Worker"] = {"replicas": workers, "restartPolicy": "OnFailure", "template": pod}
    annotations = {RUN_FOR: str(run_for)} if run_for is not None else {}
    return {"metadata": {"name": name, "annotations": annotations}, "spec": {"pytorchReplicaSpecs": roles, **spec}}


def _annotations(doc: Doc) -> dict[str, str]:
    return doc["metadata"].get("annotations") or {}


def _identity(doc: Doc) -> WANTED | None:
    found = _annotations(doc)
    return (found[JOB_ID], int(found[EPOCH])) if JOB_ID in found and EPOCH in found else None


def _running(pod: Doc) -> bool:
    return bool(pod["spec"].get("nodeName")) and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
