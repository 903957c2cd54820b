"""May a pod of a class go to a node, as far as that node alone says: kube-scheduler's static filters.

NodeUnschedulable, TaintToleration, NodeAffinity and NodePorts, with their semantics and sentences. Resources are
`resources.fits`, rules about other pods are `topology`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kube.objects.nodes import Node, Taint
from kube.objects.pod_class import PodClass
from kube.objects.pod_constraints import ANY_HOST_IP, HostPort, NodeConstraints, NodeTerm
from kube.objects.pods import Toleration
from kube.objects.resources import Resources, parse_resources
from kube.objects.selectors import integer

UNSCHEDULABLE = "node(s) were unschedulable"
NOT_READY = "node(s) were not ready"
NOT_SELECTED = "node(s) didn't match Pod's node affinity/selector"
PORTS_TAKEN = "node(s) didn't have free ports for the requested pod ports"

_CORDON = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_UNREADY = Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")


@dataclass(frozen=True, slots=True, eq=False)
class NodeView:
    """A node as placement sees it. A changed node is a new view, so verdicts may be cached by view."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    """Those that keep pods away: NoSchedule and NoExecute."""
    unschedulable: bool
    ready: bool
    allocatable: Resources
    """With "pods": the number of pods it may hold."""

    @property
    def open(self) -> bool:
        """Takes any pod that its labels and room allow."""
        return self.ready and not self.unschedulable and not self.taints

    def same_place(self, other: "NodeView") -> bool:
        """No static verdict differs between the two views (heartbeats and room change no verdict)."""
        return (
            self.name == other.name
            and self.unschedulable == other.unschedulable
            and self.ready == other.ready
            and self.taints == other.taints
            and self.labels == other.labels
        )


def node_view(node: Node) -> NodeView:
    """The view of a watched node. Raises QuantityError for an allocatable that is no quantity."""
    return NodeView(
        name=node.metadata.name,
        labels=node.metadata.labels or {},
        taints=blocking_taints(node.spec.taints or ()),
        unschedulable=node.spec.unschedulable,
        ready=node.ready,
        allocatable=parse_resources(node.status.allocatable),
    )


def blocking_taints(taints: Iterable[Taint]) -> tuple[Taint, ...]:
    """PreferNoSchedule only lowers a score."""
    return tuple(taint for taint in taints if taint.effect in ("NoSchedule", "NoExecute"))


def unfit_reason(pod_class: PodClass, node: NodeView) -> str | None:
    """Why a pod of this class may never be placed on this node as it stands, in kube-scheduler's words; None if it may.

    A node that is not ready counts as tainted node.kubernetes.io/not-ready:NoSchedule, which the node lifecycle
    controller puts there a moment later.
    """
    return constraint_violation(pod_class.constraints, node)


def constraint_violation(constraints: NodeConstraints, node: NodeView) -> str | None:
    """`unfit_reason` by the interned constraints, for callers that cache verdicts across classes."""
    if not node.open:
        if node.unschedulable and not tolerates(constraints.tolerations, _CORDON):
            return UNSCHEDULABLE
        if not node.ready and not tolerates(constraints.tolerations, _UNREADY):
            return NOT_READY
        for taint in node.taints:
            if not tolerates(constraints.tolerations, taint):
                return f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
    if constraints.free or selects(constraints, node):
        return None
    return NOT_SELECTED


def selects(constraints: NodeConstraints, node: NodeView) -> bool:
    """Node selector and required node affinity admit the node (nodeaffinity.RequiredNodeAffinity)."""
    labels = node.labels
    for requirement in constraints.selector:
        if labels.get(requirement.key) != requirement.values[0]:
            return False
    return constraints.terms is None or any(_term_matches(term, node) for term in constraints.terms)


def _term_matches(term: NodeTerm, node: NodeView) -> bool:
    return all(each.matches(node.labels) for each in term.expressions) and all(
        ((node.name if each.key == "metadata.name" else "") == each.values[0]) == (each.operator == "In")
        for each in term.fields
    )


def tolerates_all(constraints: NodeConstraints, node: NodeView) -> bool:
    """Every NoSchedule and NoExecute taint of the node is tolerated."""
    return all(tolerates(constraints.tolerations, taint) for taint in node.taints)


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    """api/core/v1 Toleration.ToleratesTaint; an empty key or effect matches all of them, Lt and Gt per KEP-5471."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator:
        case "" | "Equal":
            return toleration.value == taint.value
        case "Exists":
            return True
        case "Lt" | "Gt":
            bound, value = integer(toleration.value), integer(taint.value)
            if bound is None or value is None:
                return False
            return value < bound if toleration.operator == "Lt" else value > bound
        case _:
            return False


def ports_conflict(wanted: Iterable[HostPort], taken: Iterable[HostPort]) -> bool:
    """Some wanted host port is taken: same port and protocol, on the same address or with 0.0.0.0 on either side
    (kube-scheduler framework.HostPortInfo)."""
    taken = tuple(taken)
    return any(
        port.port == other.port
        and port.protocol == other.protocol
        and (port.ip == other.ip or ANY_HOST_IP in (port.ip, other.ip))
        for port in wanted
        for other in taken
    )
