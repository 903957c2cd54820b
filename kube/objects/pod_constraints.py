"""Where a pod may go, parsed once from its spec into frozen, hashable values.

Only what binds is kept: preferred terms, ScheduleAnyway spreads and toleration seconds place nothing.
Evaluated by `node_predicates` (one node) and `topology` (many nodes).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from kube.objects.pods import Container, PodSpec, Toleration
from kube.objects.selectors import (
    NOTHING,
    Labels,
    LabelSelector,
    Requirement,
    SelectorError,
    integer,
    label_selector,
    requirement_of,
)

HOSTNAME = "kubernetes.io/hostname"
ANY_HOST_IP = "0.0.0.0"  # noqa: S104  the wildcard of hostIP, nothing listens here


class HostPort(msgspec.Struct, frozen=True):
    ip: str
    protocol: str
    port: int


class NodeTerm(msgspec.Struct, frozen=True):
    """One nodeSelectorTerm: all of it must match."""

    expressions: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()
    """On metadata.name, In or NotIn one value."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class NodeConstraints:
    """What a pod demands of a node's labels, name and taints. Interned: equal constraints are one object."""

    tolerations: tuple[Toleration, ...]
    selector: tuple[Requirement, ...]
    """nodeSelector; all must match."""
    terms: tuple[NodeTerm, ...] | None
    """Required node affinity: one must match; None: no affinity; (): nothing matches."""

    @property
    def free(self) -> bool:
        """No demand on labels and name."""
        return not self.selector and self.terms is None

    @property
    def label_keys(self) -> frozenset[str]:
        """Node labels the verdict depends on."""
        keys = {requirement.key for requirement in self.selector}
        for term in self.terms or ():
            keys.update(requirement.key for requirement in term.expressions)
        return frozenset(keys)


class AffinityTerm(msgspec.Struct, frozen=True):
    """Required pod (anti-)affinity: pods of these namespaces that match, in the same domain of the topology key."""

    topology_key: str
    selector: LabelSelector
    namespaces: frozenset[str] = frozenset()
    namespace_selector: LabelSelector = NOTHING

    def matches(self, namespace: str, labels: Labels, namespace_labels: Labels) -> bool:
        if namespace not in self.namespaces and not self.namespace_selector.matches(namespace_labels):
            return False
        return self.selector.matches(labels)


class SpreadConstraint(msgspec.Struct, frozen=True):
    """A DoNotSchedule topology spread constraint."""

    topology_key: str
    max_skew: int
    selector: LabelSelector
    min_domains: int = 1
    honor_affinity: bool = True
    """nodeAffinityPolicy: only nodes the pod's selector and affinity admit are domains (default Honor)."""
    honor_taints: bool = False
    """nodeTaintsPolicy: only nodes whose taints the pod tolerates are domains (default Ignore)."""


_interned: WeakValueDictionary[tuple[Any, ...], NodeConstraints] = WeakValueDictionary()


def node_constraints(spec: PodSpec) -> NodeConstraints:
    """Tolerations, nodeSelector and required node affinity. Raises SelectorError."""
    tolerations: tuple[Toleration, ...] = ()
    if spec.tolerations:
        unique = {Toleration(t.key, t.operator or "Equal", t.value, t.effect) for t in spec.tolerations}
        tolerations = tuple(sorted(unique, key=lambda t: (t.key, t.operator, t.value, t.effect)))
    selector = tuple(Requirement(key, "In", (value,)) for key, value in sorted((spec.node_selector or {}).items()))
    terms: tuple[NodeTerm, ...] | None = None
    required = _required(spec, "nodeAffinity")
    if required is not None:
        if not isinstance(required, Mapping):
            raise SelectorError("nodeAffinity: requiredDuringSchedulingIgnoredDuringExecution is not an object")
        parsed = [_node_term(term) for term in required.get("nodeSelectorTerms") or ()]
        terms = tuple(term for term in parsed if term is not None)
    key = (tolerations, selector, terms)
    found = _interned.get(key)
    if found is None:
        found = _interned[key] = NodeConstraints(*key)
    return found


def _node_term(document: Mapping[str, Any]) -> NodeTerm | None:
    """None for a term that selects no node: empty, or with an expression the API server would refuse
    (component-helpers nodeaffinity.LazyErrorNodeSelector)."""
    expressions = tuple(requirement_of(each) for each in document.get("matchExpressions") or ())
    fields = tuple(requirement_of(each) for each in document.get("matchFields") or ())
    if not expressions and not fields:
        return None
    if not all(_valid_expression(each) for each in expressions):
        return None
    if not all(each.operator in ("In", "NotIn") and len(each.values) == 1 for each in fields):
        return None
    return NodeTerm(expressions, fields)


def _valid_expression(requirement: Requirement) -> bool:
    values = requirement.values
    match requirement.operator:
        case "In" | "NotIn":
            return bool(values)
        case "Exists" | "DoesNotExist":
            return not values
        case "Gt" | "Lt":
            return len(values) == 1 and integer(values[0]) is not None
        case _:
            return False


def affinity_terms(spec: PodSpec, kind: str, namespace: str, labels: Labels) -> tuple[AffinityTerm, ...]:
    """Required terms of "podAffinity" or "podAntiAffinity" of a pod with this namespace and labels.

    matchLabelKeys and mismatchLabelKeys are merged into the selector, as the API server does when a pod is made.
    Raises SelectorError.
    """
    return tuple(_affinity_term(document, namespace, labels) for document in _required(spec, kind) or ())


def _affinity_term(document: Mapping[str, Any], namespace: str, labels: Labels) -> AffinityTerm:
    selector = label_selector(document.get("labelSelector")).extended(
        [
            *_own_values(document.get("matchLabelKeys"), "In", labels),
            *_own_values(document.get("mismatchLabelKeys"), "NotIn", labels),
        ]
    )
    namespaces = frozenset(document.get("namespaces") or ())
    namespace_selector = document.get("namespaceSelector")
    if not namespaces and namespace_selector is None:
        namespaces = frozenset((namespace,))
    return AffinityTerm(
        _topology_key(document, "pod affinity"), selector, namespaces, label_selector(namespace_selector)
    )


def spread_constraints(spec: PodSpec, labels: Labels) -> tuple[SpreadConstraint, ...]:
    """DoNotSchedule constraints of a pod with these labels (podtopologyspread/common.go). Raises SelectorError."""
    return tuple(
        SpreadConstraint(
            topology_key=_topology_key(document, "topologySpreadConstraints"),
            max_skew=int(document.get("maxSkew") or 1),
            selector=label_selector(document.get("labelSelector")).extended(
                _own_values(document.get("matchLabelKeys"), "In", labels)
            ),
            min_domains=int(document.get("minDomains") or 1),
            honor_affinity=(document.get("nodeAffinityPolicy") or "Honor") == "Honor",
            honor_taints=document.get("nodeTaintsPolicy") == "Honor",
        )
        for document in spec.topology_spread_constraints or ()
        if (document.get("whenUnsatisfiable") or "DoNotSchedule") == "DoNotSchedule"
    )


def host_ports(spec: PodSpec) -> tuple[HostPort, ...]:
    """Ports on the node's addresses, of containers and sidecars (kube-scheduler util.GetHostPorts).

    With hostNetwork a container port is a host port, as the API server writes it into pods but not into templates.
    """
    ports: list[HostPort] = []
    for container in _lasting(spec):
        for port in container.ports or ():
            number = port.host_port or (port.container_port if spec.host_network else 0)
            if number > 0:
                ports.append(HostPort(port.host_ip or ANY_HOST_IP, port.protocol or "TCP", number))
    return tuple(sorted(set(ports), key=lambda p: (p.port, p.protocol, p.ip))) if ports else ()


def _lasting(spec: PodSpec) -> Iterable[Container]:
    for container in spec.init_containers or ():
        if container.restart_policy == "Always":
            yield container
    yield from spec.containers or ()


def _required(spec: PodSpec, kind: str) -> Any:
    affinity = spec.affinity.get(kind) if spec.affinity else None
    if affinity is None:
        return None
    if not isinstance(affinity, Mapping):
        raise SelectorError(f"affinity.{kind} is not an object")
    return affinity.get("requiredDuringSchedulingIgnoredDuringExecution")


def _topology_key(document: Mapping[str, Any], where: str) -> str:
    key = document.get("topologyKey") if isinstance(document, Mapping) else None
    if not isinstance(key, str) or not key:
        raise SelectorError(f"{where}: topologyKey is missing")
    return key


def _own_values(keys: Iterable[str] | None, operator: str, labels: Labels) -> list[Requirement]:
    return [Requirement(key, operator, (labels[key],)) for key in keys or () if key in labels]
