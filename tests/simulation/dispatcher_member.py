"""A member played by the book: extender, training operator and kubelets in one, without a scheduler.

Its room is a number of one-pod nodes. It judges, holds, refuses and lands gangs as the extender's contract says
(TTL before dispatch, landing deadline after it, pods admitted only with a reservation of their id and epoch that was
set to dispatched), and makes pods as the training operator does.
"""

import asyncio
from typing import Any

from kube.api.api import CAPACITIES, CRDS, LEASES, PODS, PYTORCH_JOBS, RESERVATIONS
from kube.objects.names import EPOCH, EXTENDER_LEASE, HUB_ID, JOB_ID, MUSTER_NAMESPACE
from tests.simulation.apiserver import ApiServer
from tests.simulation.apiserver_store import Doc

STEP_SECONDS = 0.2
HEARTBEAT_SECONDS = 5.0
RUN_FOR = "sim/run-for"
"""Annotation on the job: seconds its pods run."""


class PlayedMember:
    def __init__(self, server: ApiServer, slots: int, *, dialect: str = "training-operator") -> None:
        server.create(CRDS, crd(dialect), "")
        self.server = server
        self.slots = slots
        self.extender_runs = True
        self.operator_runs = True
        self.refuse_all = ""
        """Why every new gang is refused; "": it is judged by room."""
        self.never_lands = False
        self._first_seen: dict[str, tuple[int, float]] = {}
        """reservation uid -> (renewals, since when)."""
        self._dispatched_at: dict[str, float] = {}
        self._running_since: dict[str, float] = {}
        self._beat_at = -1e9
        self._sequence = 0
        self._last_status: Doc = {}

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def run(self) -> None:
        while True:
            if self.server.available and not self.server.stopped:
                self.step()
            await asyncio.sleep(STEP_SECONDS)

    def step(self) -> None:
        if self.operator_runs:
            for job in self.server.docs(PYTORCH_JOBS):
                if not job["metadata"].get("deletionTimestamp"):
                    self._operate(job)
        if self.extender_runs:
            for reservation in self.server.docs(RESERVATIONS):
                self._serve(reservation)
            self._report()
        self._end_terminating_pods()

    # --- room

    def free(self) -> int:
        return self.slots - sum(not _ended(pod) and _bound(pod) for pod in self.server.docs(PODS)) - self._held()

    def _held(self) -> int:
        held = 0
        for reservation in self.server.docs(RESERVATIONS):
            if reservation.get("status", {}).get("state") == "Reserved":
                held += _count(reservation) - sum(_bound(pod) for pod in self._pods_of(reservation))
        return held

    def _report(self) -> None:
        if self.now - self._beat_at >= HEARTBEAT_SECONDS:
            self._beat_at = self.now
            self._beat()
        free = self.free()
        shapes = [{"nodes": free, "free": {"cpu": "1", "memory": "4Gi", "pods": "10"}}] if free > 0 else []
        status: Doc = {
            "total": {"cpu": str(self.slots)},
            "free": {"cpu": str(max(0, free))},
            "nodes": self.slots,
            "shapes": shapes,
            "schedulerName": "muster",
            "includes": [
                {"id": r["spec"]["id"], "epoch": r["spec"]["epoch"]}
                for r in self.server.docs(RESERVATIONS)
                if r.get("status", {}).get("state") in ("Reserved", "Landed")
            ],
        }
        if status == self._last_status:
            return
        self._last_status = status
        self._sequence += 1
        if self.server.doc(CAPACITIES, "cluster") is None:
            self.server.create(CAPACITIES, {"metadata": {"name": "cluster"}}, "")
        self.server.patch(CAPACITIES, "cluster", {"status": {**status, "sequence": self._sequence}}, "", "status")

    def _beat(self) -> None:
        spec = {"holderIdentity": "extender", "leaseDurationSeconds": 15, "renewTime": f"{self.now}"}
        if self.server.doc(LEASES, EXTENDER_LEASE, MUSTER_NAMESPACE) is None:
            self.server.create(LEASES, {"metadata": {"name": EXTENDER_LEASE}, "spec": spec}, MUSTER_NAMESPACE)
        else:
            self.server.patch(LEASES, EXTENDER_LEASE, {"spec": spec}, MUSTER_NAMESPACE)

    # --- the extender

    def _serve(self, reservation: Doc) -> None:
        uid = reservation["metadata"]["uid"]
        spec, state = reservation["spec"], reservation.get("status", {}).get("state", "")
        renewals = spec.get("renewals", 0)
        known = self._first_seen.get(uid)
        if known is None or known[0] != renewals:
            self._first_seen[uid] = (renewals, self.now)
        dispatched = spec.get("state") == "Dispatched"
        if state == "":
            self._judge(reservation)
        elif (
            state == "Reserved" and not dispatched and self.now - self._first_seen[uid][1] > spec.get("ttlSeconds", 60)
        ):
            self._say(reservation, "Refused", "TTLExpired", "not dispatched in time")
        elif state == "Reserved" and dispatched:
            since = self._dispatched_at.setdefault(uid, self.now)
            if self.now - since > spec.get("landingDeadlineSeconds", 600):
                self._say(reservation, "Refused", "LandingDeadlineExceeded", "its pods did not come in time")
            elif not self.never_lands:
                self._land(reservation)
        elif state == "Landed":
            self._land(reservation)
            pods = [pod for pod in self._pods_of(reservation) if _bound(pod)]
            if pods and all(_ended(pod) for pod in pods) and not reservation["status"].get("podsEnded"):
                self._patch(reservation, {"podsEnded": True})

    def _judge(self, reservation: Doc) -> None:
        if self.refuse_all:
            self._say(reservation, "Refused", "InsufficientResources", self.refuse_all)
        elif _count(reservation) <= self.free():
            self._say(reservation, "Reserved", "", "")
        else:
            text = f"largest fit {self.free()} of {_count(reservation)} pods"
            self._say(reservation, "Refused", "InsufficientResources", text)

    def _land(self, reservation: Doc) -> None:
        pods = self._pods_of(reservation)
        if len(pods) < _count(reservation):
            return
        for pod in pods:
            if not _bound(pod):
                meta = pod["metadata"]
                body = {"metadata": {"name": meta["name"]}, "target": {"kind": "Node", "name": "n"}}
                self.server.create(PODS, body, meta["namespace"], meta["name"], "binding")
                self.server.patch(PODS, meta["name"], {"status": {"phase": "Running"}}, meta["namespace"], "status")
        if reservation["status"]["state"] != "Landed":
            self._patch(reservation, {"state": "Landed"})

    def _pods_of(self, reservation: Doc) -> list[Doc]:
        spec = reservation["spec"]
        return [
            pod
            for pod in self.server.docs(PODS, spec["jobNamespace"])
            if _annotation(pod, JOB_ID) == spec["id"] and _annotation(pod, EPOCH) == str(spec["epoch"])
        ]

    def _say(self, reservation: Doc, state: str, reason: str, message: str) -> None:
        self._patch(reservation, {"state": state, "reason": reason, "message": message})

    def _patch(self, reservation: Doc, status: dict[str, Any]) -> None:
        meta = reservation["metadata"]
        self.server.patch(RESERVATIONS, meta["name"], {"status": status}, meta["namespace"], "status")

    # --- the training operator and the kubelets

    def _operate(self, job: Doc) -> None:
        meta = job["metadata"]
        if _annotation(job, HUB_ID) == "" or _state(job) in ("Succeeded", "Failed"):
            return
        mine = [pod for pod in self.server.docs(PODS, meta["namespace"]) if _owner(pod) == meta["uid"]]
        if not mine:
            self._make_pods(job)
            self._set_state(job, "Created")
            return
        running = [pod for pod in mine if _phase(pod) == "Running"]
        if len(running) == len(mine) and _state(job) != "Running":
            self._running_since[meta["uid"]] = self.now
            self._set_state(job, "Running", active=True)
        run_for = (meta.get("annotations") or {}).get(RUN_FOR)
        if _state(job) == "Running" and run_for and self.now - self._running_since[meta["uid"]] >= float(run_for):
            self.finish(meta["name"], meta["namespace"])

    def finish(self, name: str, namespace: str = "default", *, state: str = "Succeeded") -> None:
        job = self.server.existing(PYTORCH_JOBS, name, namespace)
        for pod in self.server.docs(PODS, namespace):
            if _owner(pod) == job["metadata"]["uid"]:
                phase = {"status": {"phase": state}}
                self.server.patch(PODS, pod["metadata"]["name"], phase, namespace, "status")
        self._set_state(job, state)

    def _make_pods(self, job: Doc) -> None:
        meta = job["metadata"]
        names = {pod["metadata"]["name"] for pod in self.server.docs(PODS, meta["namespace"])}
        for key, role in job["spec"]["pytorchReplicaSpecs"].items():
            for index in range(role.get("replicas", 1)):
                name = f"{meta['name']}-{key.lower()}-{index}"
                if name in names:
                    continue  # of a copy before this one; made when it is gone
                template = role["template"]
                pod = {
                    "metadata": {
                        "name": name,
                        "labels": template["metadata"].get("labels", {}),
                        "annotations": template["metadata"].get("annotations", {}),
                        "ownerReferences": [
                            {
                                "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": meta["name"],
                                "uid": meta["uid"], "controller": True, "blockOwnerDeletion": True,
                            }
                        ],
                    },
                    "spec": template["spec"],
                }  # fmt: skip
                self.server.create(PODS, pod, meta["namespace"])

    def _set_state(self, job: Doc, state: str, *, active: bool = False) -> None:
        meta = job["metadata"]
        current = self.server.existing(PYTORCH_JOBS, meta["name"], meta["namespace"])
        before = current.get("status", {}).get("conditions", [])
        condition = {"type": state, "status": "True", "reason": f"PyTorchJob{state}", "message": f"is {state}"}
        kept = [c for c in before if c["type"] != state]
        if state in ("Succeeded", "Failed"):
            kept = [{**c, "status": "False"} if c["type"] == "Running" else c for c in kept]
        replicas = {
            key: {"active": role.get("replicas", 1)} if active else {}
            for key, role in current["spec"]["pytorchReplicaSpecs"].items()
        }
        status: Doc = {"conditions": [*kept, condition], "replicaStatuses": replicas}
        if state in ("Succeeded", "Failed"):
            status["completionTime"] = self.server.now()
        self.server.patch(PYTORCH_JOBS, meta["name"], {"status": status}, meta["namespace"], "status")

    def _end_terminating_pods(self) -> None:
        """Kubelets end pods that are being deleted at once."""
        for pod in self.server.docs(PODS):
            if pod["metadata"].get("deletionTimestamp"):
                meta = pod["metadata"]
                self.server.delete(PODS, meta["name"], meta["namespace"], grace=0)


def crd(dialect: str) -> Doc:
    """As much of the PyTorchJob CRD as tells the dialect."""
    fields: Doc = {"pytorchReplicaSpecs": {}, **({"runPolicy": {}} if dialect == "training-operator" else {})}
    schema = {"properties": {"spec": {"properties": fields}}}
    return {
        "metadata": {"name": "pytorchjobs.kubeflow.org"},
        "spec": {
            "group": "kubeflow.org",
            "scope": "Namespaced",
            "names": {"plural": "pytorchjobs", "kind": "PyTorchJob"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def _count(reservation: Doc) -> int:
    return sum(role["count"] for role in reservation["spec"]["roles"])


def _annotation(doc: Doc, name: str) -> str:
    found: str = (doc["metadata"].get("annotations") or {}).get(name, "")
    return found


def _phase(pod: Doc) -> str:
    found: str = pod.get("status", {}).get("phase", "")
    return found


def _ended(pod: Doc) -> bool:
    return _phase(pod) in ("Succeeded", "Failed")


def _bound(pod: Doc) -> bool:
    return bool(pod["spec"].get("nodeName"))


def _owner(pod: Doc) -> str:
    owners = pod["metadata"].get("ownerReferences") or [{}]
    return str(owners[0].get("uid", ""))


def _state(job: Doc) -> str:
    conditions = job.get("status", {}).get("conditions") or [{}]
    return str(conditions[-1].get("type", ""))
