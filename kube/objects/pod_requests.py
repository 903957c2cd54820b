"""What a pod takes on a node: kube-scheduler's own arithmetic (component-helpers resource.PodRequests).

    max over keys of (sum of containers + sidecars, each init step with the sidecars started before it) + overhead

with, per container and per key, the request, else the limit (the API server does that for pods, not for
templates), sidecars being restartable init containers (KEP-753), pod-level resources (KEP-2837) replacing the
sum for their keys, and, while a pod is resized in place (KEP-1287), the largest of what is asked for, allocated
and in effect. Each quantity is rounded up to thousandths, the total to whole units. Not counted: memory emptyDirs,
resource claims.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from kube.objects.meta import Json
from kube.objects.pods import Container, ContainerStatus, PodSpec, PodStatus, ResourceRequirements
from kube.objects.quantity import QuantityError, Value, amount_of_milli, milli_units
from kube.objects.resources import Resources

Milli = dict[str, int]


class PodTemplateError(ValueError):
    """A pod template or pod spec that cannot be a pod; the message says where and why."""


def pod_request(spec: PodSpec, status: PodStatus | None = None) -> Resources:
    """Effective request of one pod: cpu in millicores, others in units, no zeros, no "pods" key.

    `status`: given for a pod that is on a node (resizes count there); a pod being scheduled has none.
    Raises QuantityError naming the resource.
    """
    states = _container_states(status)
    infeasible = bool(states or status) and _resize_infeasible(status)
    total: Milli = {}
    for container in spec.containers or ():
        _add(total, _container_request(container, states, infeasible=infeasible))
    sidecars: Milli = {}
    peak: Milli = {}
    for container in spec.init_containers or ():
        restartable = container.restart_policy == "Always"
        request = _container_request(container, states if restartable else {}, infeasible=infeasible)
        if restartable:
            _add(total, request)
            _add(sidecars, request)
            _raise(peak, sidecars)
        else:
            step = dict(sidecars)
            _add(step, request)
            _raise(peak, step)
    _raise(total, peak)
    if spec.resources is not None:
        _replace_by_pod_level(total, spec.resources, status, infeasible=infeasible)
    if spec.overhead:
        _add(total, _milli(spec.overhead))
    return {name: amount_of_milli(name, units) for name, units in total.items() if units}


def template_request(template: Json) -> Resources:
    """Effective request of a pod made from a pod template {metadata, spec}.

    Raises PodTemplateError (not a pod spec) or QuantityError.
    """
    return pod_request(template_spec(template))


def template_spec(template: Json) -> PodSpec:
    """The typed spec of a pod template; null fields are absent fields. Raises PodTemplateError."""
    spec = template.get("spec")
    if not isinstance(spec, Mapping):
        raise PodTemplateError("the pod template has no spec")
    try:
        return msgspec.convert(_without_nulls(spec), PodSpec)
    except msgspec.ValidationError as error:
        raise PodTemplateError(f"the pod template's spec is not a pod spec: {error}") from None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _container_states(status: PodStatus | None) -> dict[str, ContainerStatus]:
    if status is None:
        return {}
    return {
        state.name: state
        for states in (status.container_statuses, status.init_container_statuses)
        for state in states or ()
        if state.resources is not None
    }


def _resize_infeasible(status: PodStatus | None) -> bool:
    """The node said no to the resize: what is asked for does not count (KEP-1287, PodResizePending)."""
    for condition in (status.conditions if status else None) or ():
        if condition.type == "PodResizePending":
            return condition.reason == "Infeasible"
    return False


def _container_request(container: Container, states: Mapping[str, ContainerStatus], *, infeasible: bool) -> Milli:
    asked: Milli = {}
    if container.resources is not None:
        if container.resources.limits:
            asked = _milli(container.resources.limits)
        if container.resources.requests:
            asked.update(_milli(container.resources.requests))
    state = states.get(container.name) if states else None
    if state is None or state.resources is None:
        return asked
    held = [_milli(state.resources.requests), _milli(state.allocated_resources)]
    return _largest(held if infeasible else [asked, *held])


def _replace_by_pod_level(
    total: Milli, pod_level: ResourceRequirements, status: PodStatus | None, *, infeasible: bool
) -> None:
    """Pod-level requests stand for the containers' sum; a pod-level limit without request only where no container
    asks (apis/core/v1 defaultPodRequests; huge pages cannot be overcommitted, so there the limit is the request)."""
    requests = {name: units for name, units in _milli(pod_level.requests).items() if _is_pod_level(name)}
    for name, units in _milli(pod_level.limits).items():
        if _is_pod_level(name) and name not in requests and (name.startswith("hugepages-") or name not in total):
            requests[name] = units
    if status is not None and status.resources is not None and requests:
        held = [_milli(status.resources.requests), _milli(status.allocated_resources)]
        effective = _largest(held if infeasible else [requests, *held])
        requests = {name: effective.get(name, 0) for name in requests}
    total.update(requests)


def _is_pod_level(name: str) -> bool:
    return name in ("cpu", "memory") or name.startswith("hugepages-")


def _milli(quantities: Mapping[str, Value | None] | None) -> Milli:
    milli: Milli = {}
    for name, value in (quantities or {}).items():
        if value is not None:
            try:
                milli[name] = milli_units(value)
            except QuantityError as error:
                raise QuantityError(f"{name}: {error}") from None
    return milli


def _add(total: Milli, other: Milli) -> None:
    for name, units in other.items():
        total[name] = total.get(name, 0) + units


def _raise(peak: Milli, other: Milli) -> None:
    for name, units in other.items():
        if units > peak.get(name, -1):
            peak[name] = units


def _largest(lists: Iterable[Milli]) -> Milli:
    largest: Milli = {}
    for each in lists:
        _raise(largest, each)
    return largest
