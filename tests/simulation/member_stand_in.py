"""A member cluster as the dispatcher sees it: an API server with an extender and a training operator that play by the
protocol on plain numbers. Nodes are alike and hold GPUs only; a gang takes the nodes that fit tightest.

What the real extender decides is tested elsewhere: here only that it answers, keeps room, and reports.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

from kube.api.api import CAPACITIES, CRDS, LEASES, PODS, PYTORCH_JOBS, RESERVATIONS, Resource
from tests.simulation.apiserver import ApiServer
from tests.simulation.apiserver_store import Change, Doc, kind_of

GPU = "nvidia.com/gpu"
RUN_FOR = "sim/run-for"
"""Annotation of a pod template: virtual seconds; absent: for ever."""
THINKS = 0.02
"""Seconds from an event to the answer."""
GRACE = 1.0
"""Seconds that a pod takes to end."""


class MemberStandIn:
    """`run()` for its life. `nodes` of `gpus` each."""

    def __init__(self, server: ApiServer, *, nodes: int, gpus: int) -> None:
        self.server = server
        self.nodes, self.gpus = nodes, gpus
        self.taken: dict[str, list[int]] = {}
        """Reservation -> GPUs on each node."""
        self._claimant = ""
        self._due = asyncio.Event()
        self._sequence = 0
        self._ending: dict[tuple[str, str], float] = {}
        self._ends: dict[str, float] = {}
        server.create(CRDS, _PYTORCHJOB_CRD, "")
        server.observe(self._observe)

    def free(self) -> list[int]:
        free = [self.gpus] * self.nodes
        for taken in self.taken.values():
            free = [a - b for a, b in zip(free, taken, strict=True)]
        return free

    async def run(self) -> None:
        self._report()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._beat())
            while True:
                pause = min([*self._ends.values(), *self._ending.values()], default=None)
                try:
                    async with asyncio.timeout_at(pause):
                        await self._due.wait()
                except TimeoutError:
                    pass
                self._due.clear()
                await asyncio.sleep(THINKS)
                self._look()

    def _observe(self, change: Change) -> None:
        if change.kind[1] in ("gangreservations", "pytorchjobs", "pods"):
            self._due.set()

    async def _beat(self) -> None:
        """An extender's Lease: only renewals that are seen to happen count."""
        beat = 0
        while True:
            beat += 1
            spec = {"holderIdentity": "extender", "renewTime": f"2026-08-01T12:00:00.{beat:06}Z"}
            if self.server.doc(LEASES, "muster-extender", "muster-system") is None:
                doc = {"metadata": {"name": "muster-extender"}, "spec": spec}
                self.server.create(LEASES, doc, "muster-system")
                await asyncio.sleep(0.05)
                continue
            self.server.patch(LEASES, "muster-extender", {"spec": spec}, "muster-system")
            await asyncio.sleep(5)

    def _look(self) -> None:
        before = (self.free(), self._claimant, sorted(self.taken))
        reservations = {doc["metadata"]["name"]: doc for doc in _docs(self.server, RESERVATIONS, "muster-system")}
        for name in [name for name in self.taken if name not in reservations and not self._pods_of(name)]:
            del self.taken[name]
        if self._claimant not in reservations:
            self._claimant = ""
        for name, doc in reservations.items():
            if not doc.get("status", {}).get("state"):
                self._judge(name, doc)
        self._operate(reservations)
        if before != (self.free(), self._claimant, sorted(self.taken)):
            self._report()

    # The extender

    def _judge(self, name: str, doc: Doc) -> None:
        claiming = doc["spec"].get("claim", False)
        closed = self._claimant not in ("", name)
        plan = None if closed else self._plan(doc)
        if plan is not None:
            self.taken[name] = plan
            if self._claimant == name:
                self._claimant = ""
            self._say(name, {"state": "Reserved"})
        elif claiming and not closed:
            self._claimant = name
        else:
            self._say(name, {"state": "Refused", "reason": "InsufficientResources", "message": "no room"})

    def _plan(self, doc: Doc) -> list[int] | None:
        free, taken = self.free(), [0] * self.nodes
        for gpus in sorted(_asks(doc), reverse=True):
            fits = [node for node in range(self.nodes) if free[node] >= gpus]
            if not fits:
                return None
            node = min(fits, key=lambda node: (free[node], node))
            free[node] -= gpus
            taken[node] += gpus
        return taken

    def _say(self, name: str, status: Doc) -> None:
        self.server.patch(RESERVATIONS, name, {"status": status}, "muster-system", "status")

    def _report(self) -> None:
        self._sequence += 1
        free = self.free()
        closed = bool(self._claimant)
        counts = {n: free.count(n) for n in set(free)} if not closed else {}
        status = {
            "total": {GPU: str(self.nodes * self.gpus), "cpu": "100000", "memory": "100000Gi", "pods": "100000"},
            "free": {GPU: str(sum(free)), "cpu": "100000", "memory": "100000Gi", "pods": "100000"},
            "nodes": self.nodes,
            "shapes": [
                {"nodes": nodes, "free": {GPU: str(gpus), "cpu": "1000", "memory": "1000Gi", "pods": "1000"}}
                for gpus, nodes in sorted(counts.items())
            ],
            "includes": [
                {"id": name.rpartition("-")[0], "epoch": int(name.rpartition("-")[2])} for name in sorted(self.taken)
            ],
            "schedulerName": "muster",
            "sequence": self._sequence,
        }
        if self.server.doc(CAPACITIES, "cluster") is None:
            self.server.create(CAPACITIES, {"metadata": {"name": "cluster"}}, "")
        self.server.patch(CAPACITIES, "cluster", {"status": status}, "", "status")

    # Operator, scheduler and kubelets

    def _operate(self, reservations: dict[str, Doc]) -> None:
        now = asyncio.get_running_loop().time()
        copies = {_attempt(doc): doc for doc in _docs(self.server, PYTORCH_JOBS)}
        for attempt, copy in copies.items():
            reservation = reservations.get(attempt)
            admitted = reservation is not None and reservation["spec"].get("state") == "Dispatched"
            if admitted and attempt in self.taken and not copy.get("status", {}).get("conditions"):
                self._start(attempt, copy)
            if self._ends.get(attempt, now + 1) <= now:
                self._finish(attempt, copy)
        for attempt in [attempt for attempt in self._ends if attempt not in copies]:
            del self._ends[attempt]
        for pod in _docs(self.server, PODS):
            key = (pod["metadata"]["namespace"], pod["metadata"]["name"])
            if _attempt(pod) not in copies and self._ending.setdefault(key, now + GRACE) <= now:
                del self._ending[key]
                self.server.delete(PODS, key[1], key[0], grace=0)

    def _start(self, attempt: str, copy: Doc) -> None:
        namespace, name = copy["metadata"]["namespace"], copy["metadata"]["name"]
        for role, index, template in _pods(copy):
            pod = {
                "metadata": {
                    "name": f"{name}-{role.lower()}-{index}",
                    "labels": template["metadata"].get("labels", {}),
                    "annotations": template["metadata"].get("annotations", {}),
                },
                "spec": {**template["spec"], "nodeName": "n0"},
            }
            self.server.create(PODS, pod, namespace)
            self.server.patch(PODS, pod["metadata"]["name"], {"status": {"phase": "Running"}}, namespace, "status")
            if RUN_FOR in template["metadata"].get("annotations", {}):
                seconds = float(template["metadata"]["annotations"][RUN_FOR])
                self._ends[attempt] = asyncio.get_running_loop().time() + seconds
        self._conditions(copy, "Created", "Running")
        self._say(attempt, {"state": "Landed"})

    def _finish(self, attempt: str, copy: Doc) -> None:
        del self._ends[attempt]
        for pod in _docs(self.server, PODS, copy["metadata"]["namespace"]):
            if _attempt(pod) == attempt:
                ended = {"status": {"phase": "Succeeded"}}
                self.server.patch(PODS, pod["metadata"]["name"], ended, pod["metadata"]["namespace"], "status")
        self._conditions(copy, "Created", "Running", "Succeeded")
        self.taken.pop(attempt, None)
        self._report()

    def _conditions(self, copy: Doc, *types: str) -> None:
        last = types[-1]
        at = self.server.now()
        conditions = [
            {
                "type": type_,
                "status": "True" if type_ in ("Created", last) else "False",
                "reason": f"PyTorchJob{type_}",
                "message": type_,
                "lastUpdateTime": at,
                "lastTransitionTime": at,
            }
            for type_ in types
        ]
        metadata = copy["metadata"]
        status: Doc = {"conditions": conditions, "startTime": at}
        if last == "Succeeded":
            status["completionTime"] = at
        roles = copy["spec"]["pytorchReplicaSpecs"]
        count = "succeeded" if last == "Succeeded" else "active"
        status["replicaStatuses"] = {role: {count: spec.get("replicas", 1)} for role, spec in roles.items()}
        self.server.patch(PYTORCH_JOBS, metadata["name"], {"status": status}, metadata["namespace"], "status")

    def _pods_of(self, attempt: str) -> bool:
        return any(_attempt(pod) == attempt for pod in _docs(self.server, PODS))


def _docs(server: ApiServer, resource: Resource, namespace: str = "") -> list[Doc]:
    """As they are in the store, to be read only."""
    return [stored.doc for _, stored in server.store.all(kind_of(resource), namespace)]


def _pods(copy: Doc) -> Iterator[tuple[str, int, Doc]]:
    for role, spec in copy["spec"]["pytorchReplicaSpecs"].items():
        for index in range(spec.get("replicas", 1)):
            yield role, index, spec["template"]


def _asks(reservation: Doc) -> list[int]:
    """GPUs of each pod."""
    asks = []
    for role in reservation["spec"]["roles"]:
        containers: list[Any] = role["template"]["spec"]["containers"]
        gpus = sum(int(c.get("resources", {}).get("requests", {}).get(GPU, 0)) for c in containers)
        asks += [gpus] * role["count"]
    return asks


def _attempt(doc: Doc) -> str:
    annotations = doc["metadata"].get("annotations") or {}
    return f"{annotations.get('muster.dev/id', '')}-{annotations.get('muster.dev/epoch', '')}"


_PYTORCHJOB_CRD: Doc = {
    "metadata": {"name": "pytorchjobs.kubeflow.org"},
    "spec": {
        "group": "kubeflow.org",
        "names": {"plural": "pytorchjobs", "kind": "PyTorchJob"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "schema": {
                    "openAPIV3Schema": {
                        "properties": {
                            "spec": {"properties": {"runPolicy": {}, "pytorchReplicaSpecs": {}}},
                        }
                    }
                },
            }
        ],
    },
}
