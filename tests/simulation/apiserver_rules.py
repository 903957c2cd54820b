"""What an API server does to an object on its way to the store, by kind (kubernetes pkg/registry strategies)."""

import re
from typing import Any

from kube.api.status import error_of
from tests.simulation.apiserver_store import Doc, Kind, copied

PODS: Kind = ("", "pods")
BUILT_IN_GROUPS = {
    "",
    "apps",
    "batch",
    "coordination.k8s.io",
    "scheduling.k8s.io",
    "node.k8s.io",
    "apiextensions.k8s.io",
}
WITHOUT_STATUS: set[Kind] = {
    ("", "secrets"),
    ("", "configmaps"),
    ("", "events"),
    ("", "serviceaccounts"),
    ("coordination.k8s.io", "leases"),
    ("scheduling.k8s.io", "priorityclasses"),
    ("node.k8s.io", "runtimeclasses"),
}
"""Kinds without a status subresource."""
WITHOUT_GENERATION = WITHOUT_STATUS | {("", "nodes"), ("", "namespaces"), ("", "resourcequotas")}
KEEPS_STATUS_ON_CREATE: set[Kind] = {("", "nodes")}
UNCONDITIONAL_UPDATE: set[Kind] = {
    ("", "pods"),
    ("", "nodes"),
    ("", "namespaces"),
    ("", "secrets"),
    ("", "configmaps"),
    ("", "events"),
    ("", "resourcequotas"),
    ("scheduling.k8s.io", "priorityclasses"),
}
"""PUT without resourceVersion overwrites; elsewhere it is refused (AllowUnconditionalUpdate)."""

SYSTEM_FIELDS = ("uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "managedFields")
MUTABLE_POD_SPEC = ("tolerations", "schedulingGates", "activeDeadlineSeconds", "terminationGracePeriodSeconds")

_NAME = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")


def refuse(code: int, reason: str, message: str) -> Exception:
    """The exception that `HttpApi` would make of this answer."""
    text = f'{{"kind":"Status","code":{code},"reason":"{reason}"}}'
    error = error_of(code, text.encode())
    return type(error)(code, reason, message)


def is_custom(kind: Kind) -> bool:
    return kind[0] not in BUILT_IN_GROUPS


def has_status(kind: Kind) -> bool:
    return kind not in WITHOUT_STATUS


def check_name(name: str, what: str) -> None:
    if not name:
        raise refuse(
            422, "Invalid", f"{what} is invalid: metadata.name: Required value: name or generateName is required"
        )
    if len(name) > 253 or not _NAME.match(name):
        raise refuse(422, "Invalid", f'{what} "{name}" is invalid: metadata.name: Invalid value: "{name}"')


def prepare_create(kind: Kind, doc: Doc) -> None:
    """Status is the system's; pods get their defaults. doc is changed in place."""
    metadata = doc["metadata"]
    for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"):
        metadata.pop(field, None)
    if kind not in WITHOUT_GENERATION:
        metadata["generation"] = 1
    if has_status(kind) and kind not in KEEPS_STATUS_ON_CREATE:
        doc.pop("status", None)
    if kind == PODS:
        _default_pod(doc)
    if kind == ("", "namespaces"):
        doc["status"] = {"phase": "Active"}


def _default_pod(doc: Doc) -> None:
    spec = doc.setdefault("spec", {})
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("priority", 0)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    for container in [*spec.get("containers", ()), *spec.get("initContainers", ())]:
        resources = container.get("resources") or {}
        if resources.get("limits"):
            # Requests default to limits (SetDefaults_Pod).
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
        container["resources"] = resources
    gated = bool(spec.get("schedulingGates"))
    doc["status"] = {"phase": "Pending", "qosClass": "Burstable"}
    if gated:
        doc["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]


def prepare_update(kind: Kind, old: Doc, new: Doc, subresource: str) -> Doc:
    """The document to store for a PUT or patch of `new` over `old`. Raises Invalid."""
    new = copied(new)
    metadata, there = new.setdefault("metadata", {}), old["metadata"]
    if subresource == "status":
        # Only the status counts.
        new = copied(old) | {"status": new.get("status")}
        if new["status"] is None:
            new.pop("status")
        return new
    for field in (*SYSTEM_FIELDS, "deletionGracePeriodSeconds", "name", "namespace"):
        if field in there:
            metadata[field] = there[field]
        else:
            metadata.pop(field, None)
    new["apiVersion"], new["kind"] = old["apiVersion"], old["kind"]
    if has_status(kind):
        new.pop("status", None)
        if "status" in old:
            new["status"] = old["status"]
    if there.get("deletionTimestamp") and set(metadata.get("finalizers") or ()) - set(there.get("finalizers") or ()):
        raise refuse(
            422,
            "Invalid",
            "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted",
        )
    if kind == PODS:
        _check_pod_update(old, new)
    if kind not in WITHOUT_GENERATION and _content(old) != _content(new):
        metadata["generation"] = there.get("generation", 0) + 1
    return new


def _check_pod_update(old: Doc, new: Doc) -> None:
    name = old["metadata"]["name"]
    was, now = copied(old["spec"]), copied(new.get("spec") or {})
    gates_before = [gate["name"] for gate in was.get("schedulingGates") or ()]
    gates_after = [gate["name"] for gate in now.get("schedulingGates") or ()]
    if set(gates_after) - set(gates_before):
        raise refuse(422, "Invalid", f'Pod "{name}" is invalid: spec.schedulingGates: only deletion is allowed')
    for spec in (was, now):
        for field in MUTABLE_POD_SPEC:
            spec.pop(field, None)
        if gates_before:
            # Gated pods may have their placement narrowed (KEP-3838).
            spec.pop("nodeSelector", None)
            spec.pop("affinity", None)
        for container in spec.get("containers", ()):
            container.pop("image", None)
    if was != now:
        raise refuse(422, "Invalid", f'Pod "{name}" is invalid: spec: Forbidden: pod updates may not change fields')


def _content(doc: Doc) -> Doc:
    """What a generation counts: all but metadata and status."""
    return {key: value for key, value in doc.items() if key not in ("metadata", "status")}


def bound(pod: Doc, target: str, uid: str, version: str, now: str) -> Doc:
    """The pod after its Binding. Every refusal is a Conflict (registry/core/pod/storage, assignPod)."""
    metadata, spec = pod["metadata"], pod["spec"]
    name = metadata["name"]

    def conflict(why: str) -> Exception:
        return refuse(409, "Conflict", f'Operation cannot be fulfilled on pods/binding "{name}": {why}')

    if uid and uid != metadata["uid"]:
        raise conflict(f"Precondition failed: UID in precondition: {uid}, UID in object meta: {metadata['uid']}")
    if version and version != metadata["resourceVersion"]:
        raise conflict("Precondition failed: ResourceVersion")
    if metadata.get("deletionTimestamp"):
        raise conflict(f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        raise conflict(f"pod {name} is already assigned to node {spec['nodeName']!r}")
    if spec.get("schedulingGates"):
        raise conflict(f"pod {name} has non-empty .spec.schedulingGates")
    new = copied(pod)
    new["spec"]["nodeName"] = target
    status = new.setdefault("status", {})
    conditions: list[Any] = [c for c in status.get("conditions") or () if c["type"] != "PodScheduled"]
    status["conditions"] = [*conditions, {"type": "PodScheduled", "status": "True", "lastTransitionTime": now}]
    return new


def grace_seconds(kind: Kind, doc: Doc, asked: int | None) -> int:
    """How long a deletion leaves the object: only pods on a node that have not ended stay (CheckGracefulDelete)."""
    if kind != PODS or not doc["spec"].get("nodeName"):
        return 0
    if (doc.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    return asked if asked is not None else int(doc["spec"].get("terminationGracePeriodSeconds", 30))
