"""Pod classes: pods of one class are interchangeable wherever they are placed.

A class holds everything placement asks of a pod. Classes are interned, so that comparing them is comparing
identities, and dropped when nothing refers to them any more.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from kube.objects.meta import Json
from kube.objects.pod_constraints import (
    AffinityTerm,
    HostPort,
    NodeConstraints,
    SpreadConstraint,
    affinity_terms,
    host_ports,
    node_constraints,
    spread_constraints,
)
from kube.objects.pod_requests import PodTemplateError, pod_request, template_spec
from kube.objects.pods import Container, PodSpec, ResourceRequirements
from kube.objects.quantity import QuantityError
from kube.objects.resources import Resources, format_resources
from kube.objects.selectors import Labels, LabelSelector, SelectorError

NO_LABELS: Mapping[str, str] = {}

Subject = tuple[str, tuple[tuple[str, str], ...]]
"""What selectors see of a pod: (namespace, sorted label items)."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PodClass:
    """Made by `pod_class` or `template_class` only. Treat the dictionaries as read-only."""

    requests: Resources
    """Effective request of one pod (cpu millicores, bytes, devices)."""
    charge: Resources
    """What one pod takes on its node: `requests` and one of "pods"."""
    constraints: NodeConstraints
    """Taints, node selector and node affinity; interned, so verdicts may be cached by it across classes."""
    host_ports: tuple[HostPort, ...]
    subject: Subject
    """Namespace and those labels that topology rules in play look at."""
    affinity: tuple[AffinityTerm, ...]
    anti_affinity: tuple[AffinityTerm, ...]
    spread: tuple[SpreadConstraint, ...]
    priority: int

    @property
    def namespace(self) -> str:
        return self.subject[0]

    @property
    def rule_keys(self) -> frozenset[str]:
        """Pod label keys its own rules look at: other classes of the same plan have to keep them (`label_keys`)."""
        return frozenset(_selector_keys(self.affinity, self.anti_affinity, self.spread))

    @property
    def couples(self) -> bool:
        """Where one pod of this class sits decides where others of the cluster may (its own topology rules)."""
        return bool(self.affinity or self.anti_affinity or self.spread)


_interned: WeakValueDictionary[tuple[Any, ...], PodClass] = WeakValueDictionary()


def pod_class(
    namespace: str,
    labels: Labels | None,
    spec: PodSpec,
    *,
    priority: int | None = None,
    label_keys: Iterable[str] = (),
) -> PodClass:
    """The class of a pod that is to be scheduled.

    priority: overrides spec.priority (templates carry a class name only); absent means 0.
    label_keys: labels that rules of *other* pods look at (`TopologyState.selector_keys`); labels that only tell
    siblings apart (replica index, job name) thus do not split a class, unless a rule names them.
    Raises PodTemplateError (a selector that cannot be) or QuantityError.
    """
    own = labels or NO_LABELS
    try:
        constraints = node_constraints(spec)
        if spec.affinity:
            affinity = affinity_terms(spec, "podAffinity", namespace, own)
            anti_affinity = affinity_terms(spec, "podAntiAffinity", namespace, own)
        else:
            affinity = anti_affinity = ()
        spread = spread_constraints(spec, own) if spec.topology_spread_constraints else ()
    except SelectorError as error:
        raise PodTemplateError(str(error)) from None
    keys = _selector_keys(affinity, anti_affinity, spread)
    keys.update(label_keys)
    relevant = tuple(sorted((key, own[key]) for key in keys if key in own)) if keys else ()
    requests = pod_request(spec)
    key = (
        tuple(sorted(requests.items())),
        constraints,
        host_ports(spec),
        (namespace, relevant),
        affinity,
        anti_affinity,
        spread,
        (spec.priority or 0) if priority is None else priority,
    )
    found = _interned.get(key)
    if found is None:
        found = PodClass(requests, {**requests, "pods": 1}, *key[1:])
        _interned[key] = found
    return found


def template_class(
    namespace: str,
    template: Json,
    *,
    priority: int | None = None,
    label_keys: Iterable[str] = (),
) -> PodClass:
    """The class of pods made from a pod template {metadata, spec}. Raises PodTemplateError or QuantityError."""
    metadata = template.get("metadata") or {}
    labels = metadata.get("labels") if isinstance(metadata, Mapping) else None
    if labels is not None and not isinstance(labels, Mapping):
        raise PodTemplateError("the pod template's metadata.labels is not an object")
    return pod_class(namespace, labels, template_spec(template), priority=priority, label_keys=label_keys)


def template_classes(
    namespace: str,
    templates: Mapping[str, Json],
    *,
    priority: int | None = None,
    label_keys: Iterable[str] = (),
) -> dict[str, PodClass]:
    """Classes of a gang's roles, each keeping the labels that rules of the other roles (and `label_keys`) look at.

    Raises PodTemplateError or QuantityError, the message led by the role.
    """
    keys = set(label_keys)
    classes: dict[str, PodClass] = {}
    for role, template in templates.items():
        try:
            classes[role] = template_class(namespace, template, priority=priority)
        except (PodTemplateError, QuantityError) as error:
            raise PodTemplateError(f"{role}: {error}") from None
        keys |= classes[role].rule_keys
    if not keys:
        return classes
    return {
        role: template_class(namespace, template, priority=priority, label_keys=keys)
        for role, template in templates.items()
    }


def plain_class(requests: Resources, *, namespace: str = "", priority: int = 0) -> PodClass:
    """A class that asks for room alone, from amounts without "pods"."""
    spec = PodSpec(containers=[Container(resources=ResourceRequirements(requests=dict(format_resources(requests))))])
    return pod_class(namespace, None, spec, priority=priority)


def _selector_keys(
    affinity: Iterable[AffinityTerm], anti_affinity: Iterable[AffinityTerm], spread: Iterable[SpreadConstraint]
) -> set[str]:
    """Label keys these rules look at on other pods."""
    selectors: list[LabelSelector] = [term.selector for term in affinity]
    selectors += [term.selector for term in anti_affinity]
    selectors += [constraint.selector for constraint in spread]
    return {key for selector in selectors for key in selector.keys}
