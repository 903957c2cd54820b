"""QueueUnit objects (scheduling.x-k8s.io/v1alpha1): Kube Queue's view of one job's binding, in the job's namespace.

Written from the binding and never read back as truth, but for the admission checks that others report in its status.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from dispatcher.documents import at, mapping, maps, text
from dispatcher.queue_names import queue_name
from kube.objects.binding import Component, ResourceBinding
from kube.objects.meta import Json
from kube.objects.resources import Resources, add_into, format_resources, parse_resources
from kube.objects.selectors import SelectorError, label_selector

Phase = Literal["Enqueued", "Reserved", "Dequeued", "Running", "Succeed", "Failed", "TimeoutBackoff"]

DEQUEUED = "Dequeued because schedule successfully"
RESERVED = "Reserved resources success, waiting admission checks to be ready"
ENQUEUED = "Enqueued"


def queue_unit_name(binding_name: str) -> str:
    """`<binding>-rb-qu`."""
    return f"{binding_name}-rb-qu"


class Checks(msgspec.Struct, frozen=True):
    """What others still have to say, as text; "" for none."""

    pending: str = ""
    failed: str = ""


def needed_checks(queue: Json | None, job_labels: Mapping[str, str]) -> list[str]:
    """Names in the Queue's spec.admissionChecks whose labelSelector (absent: all) takes the job. A selector that cannot
    be read takes every job: a check must not be skipped by a mistake."""
    names = []
    for check in maps(at(queue or {}, ("spec", "admissionChecks"))):
        try:
            takes = check.get("labelSelector") is None or label_selector(check["labelSelector"]).matches(job_labels)
        except SelectorError:
            takes = True
        if takes and text(check.get("name")):
            names.append(text(check.get("name")))
    return names


def judge_checks(needed: Iterable[str], unit_status: Json | None) -> Checks:
    """Those that the queue asks for, and those that somebody put on the unit."""
    states = {text(c.get("name")): c for c in maps(mapping(unit_status).get("admissionChecks"))}
    pending, failed = [], []
    for name in sorted({*needed, *states}):
        check = states.get(name, {})
        state = text(check.get("state")) or "Pending"
        if state in ("Retry", "Rejected"):
            said = text(check.get("message"))
            failed.append(f"{name}: {state}" + (f" ({said})" if said else ""))
        elif state != "Ready":
            pending.append(name)
    return Checks(", ".join(pending), ", ".join(failed))


class UnitState(msgspec.Struct, frozen=True):
    phase: Phase
    message: str


def unit_state(binding: ResourceBinding) -> UnitState:
    """Phase and message of a binding's QueueUnit."""
    spec = binding.spec
    if spec.result is not None:
        return UnitState("Succeed" if spec.result.state == "Succeeded" else "Failed", spec.result.message)
    attempt = spec.attempt
    if attempt is None:
        return UnitState("Enqueued", _condition(binding, "Scheduled")[1] or ENQUEUED)
    match attempt.state:
        case "Reserving":
            return UnitState("Reserved", RESERVED)
        case "Evicting" if attempt.then in ("", "Queue"):
            return UnitState("TimeoutBackoff", attempt.message or attempt.reason)
        case "Evicting":
            return UnitState("Dequeued", attempt.message or attempt.reason)
        case _:
            running = _condition(binding, "Running")[0] == "True"
            return UnitState("Running", "") if running else UnitState("Dequeued", DEQUEUED)


def _condition(binding: ResourceBinding, type_: str) -> tuple[str, str]:
    return next(((each.status, each.message) for each in binding.status.conditions if each.type == type_), ("", ""))


def desired_queue_unit(binding: ResourceBinding, *, queue: str = "", priority_class: str = "") -> Json:
    """QueueUnit without status, owned by the job. `queue`: the hand-made one it waits in."""
    spec, job = binding.spec, binding.spec.job
    asked = format_resources(_total(spec.components))
    unit: Json = {
        "consumerRef": {
            "apiVersion": job.api_version,
            "kind": job.kind,
            "namespace": binding.metadata.namespace,
            "name": job.name,
            "uid": job.uid,
        },
        "priority": spec.priority,
        "request": asked,
        "resource": asked,
        "podSet": [
            {"name": component.name, "count": component.replicas, "minCount": component.min_replicas}
            for component in spec.components
        ],
    }
    if priority_class:
        unit["priorityClassName"] = priority_class
    if queue or spec.quota:
        unit["queue"] = queue or queue_name(spec.quota.split("/"))
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "QueueUnit",
        "metadata": {
            "name": queue_unit_name(binding.metadata.name),
            "namespace": binding.metadata.namespace,
            "ownerReferences": [
                {"apiVersion": job.api_version, "kind": job.kind, "name": job.name, "uid": job.uid, "controller": True}
            ],
        },
        "spec": unit,
    }


def _total(components: list[Component]) -> Resources:
    total: Resources = {}
    for component in components:
        add_into(total, parse_resources(component.request), component.replicas)
    return total


def queue_unit_status(binding: ResourceBinding, previous: Json | None, now: str, needed: Sequence[str] = ()) -> Json:
    """The unit's status; equal to `previous` while nothing changes, so that nothing is written (F27). What admission
    checks report is kept; `needed` ones are listed as Pending once quota and room are reserved, and those that failed
    are so again when the job is queued again. `now`: RFC 3339."""
    state = unit_state(binding)
    before = mapping(previous)
    status: Json = {
        **before,
        "phase": state.phase,
        "message": state.message,
        "attempts": binding.spec.last_epoch,
        "admissions": _admissions(binding) if state.phase in ("Dequeued", "Running") else [],
    }
    checks = _checks(state, maps(before.get("admissionChecks")), needed)
    if checks or before.get("admissionChecks"):
        status["admissionChecks"] = checks
    if status == before:
        return status
    status["lastUpdateTime"] = now
    if state.phase in ("Reserved", "Dequeued") and before.get("phase") not in ("Reserved", "Dequeued", "Running"):
        status["lastAllocateTime"] = now
    return status


def _checks(state: UnitState, before: list[Json], needed: Sequence[str]) -> list[Json]:
    checks = before
    if state.phase in ("Enqueued", "TimeoutBackoff"):
        failed = ("Retry", "Rejected")
        checks = [{"name": c.get("name"), "state": "Pending"} if c.get("state") in failed else c for c in before]
    elif state.phase == "Reserved":
        missing = [name for name in needed if name not in {c.get("name") for c in before}]
        checks = [*before, *({"name": name, "state": "Pending"} for name in missing)]
    return checks


def _admissions(binding: ResourceBinding) -> list[Json]:
    return [
        {
            "name": component.name,
            "replicas": component.replicas,
            "resources": format_resources(
                {name: units * component.replicas for name, units in parse_resources(component.request).items()}
            ),
        }
        for component in binding.spec.components
    ]
