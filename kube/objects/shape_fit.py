"""How much of a gang fits into reported node shapes, and what is short where it does not.

Exact for one class; several classes are tried in every order (up to three) or hardest first, packing tightly: a greedy
answer that may be a little low on tight mixes. The reservation in the member decides. Not looked at, because shapes do
not tell: other pods' ports and affinities, spread, and demands on labels that shapes do not carry.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import permutations, product

import msgspec

from kube.objects.capacity import NodeShape
from kube.objects.node_predicates import PORTS_TAKEN, NodeView, blocking_taints, constraint_violation, ports_conflict
from kube.objects.pod_class import NO_LABELS, PodClass
from kube.objects.pod_constraints import HOSTNAME, AffinityTerm, HostPort, NodeConstraints, NodeTerm
from kube.objects.resources import Resources, dominant_share, fit_count, parse_resources, scale, shortage, subtract
from kube.objects.topology import AFFINITY_UNMET, ANTI_AFFINITY_UNMET

NO_ROOM = "no node has free room"

_MOST_CHOICES = 256
"""Domains tried for gangs that must sit together, per member."""


class Demand(msgspec.Struct, frozen=True):
    """`count` pods of one class; `name` is the role."""

    pod_class: PodClass
    count: int
    name: str = ""


class LargestFit(msgspec.Struct, frozen=True, kw_only=True):
    pods: int
    """How many of the gang's pods fit at once."""
    wanted: int
    placed: tuple[int, ...]
    """Per demand, in the order given."""
    short: Resources = {}
    """What the pods left over ask for, of the resources that keep them out; devices first."""
    reason: str = ""
    """Why the rest has no place, when it is not room: "node(s) didn't match Pod's node affinity/selector"."""

    @property
    def fits(self) -> bool:
        return self.pods >= self.wanted

    @property
    def text(self) -> str:
        """For people: "largest fit 7 of 9 pods (nvidia.com/gpu)"."""
        what = ", ".join(self.short) or self.reason
        return f"largest fit {self.pods} of {self.wanted} pods" + (f" ({what})" if what else "")


def largest_fit(
    demands: Sequence[Demand],
    shapes: Iterable[NodeShape],
    promised: Sequence[Demand] = (),
    *,
    unknown_label_keys: Collection[str] = (HOSTNAME,),
) -> LargestFit:
    """How many pods of `demands` fit into `shapes` after `promised` ones took their room.

    unknown_label_keys: node labels that the shapes do not carry; demands on them are taken as met.
    Raises QuantityError if a shape's free vector is not made of quantities.
    """
    roles = [_Role(index, demand, unknown_label_keys) for index, demand in enumerate((*demands, *promised))]
    wanted, others = roles[: len(demands)], roles[len(demands) :]
    bins = [_bin(index, shape) for index, shape in enumerate(shapes)]
    for role in _hardest_first(others, bins):
        bins, _ = _fill(bins, role, role.count, {})
    best: dict[int, int] = {}
    left = bins
    for confined, choice in _together(wanted, bins):
        for order in _orders(wanted, choice):
            attempt, rest = _attempt(order, choice, confined)
            if not best or sum(attempt.values()) > sum(best.values()):
                best, left = attempt, rest
            if all(best.get(role.index, 0) == role.count for role in wanted):
                break
    placed = tuple(best.get(role.index, 0) for role in wanted)
    short, reason = _why(wanted, placed, left)
    return LargestFit(
        pods=sum(placed),
        wanted=sum(role.count for role in wanted),
        placed=placed,
        short=short,
        reason=reason,
    )


class _Role:
    """A demand, ready for the question "does one more go here"."""

    __slots__ = ("anti", "charge", "constraints", "count", "index", "pod_class", "ports")

    def __init__(self, index: int, demand: Demand, unknown: Collection[str]) -> None:
        self.index = index
        self.pod_class = demand.pod_class
        self.count = demand.count
        self.charge = demand.pod_class.charge
        self.ports = demand.pod_class.host_ports
        self.constraints = _known_part(demand.pod_class.constraints, unknown)
        self.anti = demand.pod_class.anti_affinity

    def repels(self, other: "_Role", key: str) -> bool:
        """Required anti-affinity by this topology key, in either direction."""
        return any(term.topology_key == key and _selects(term, other) for term in self.anti) or any(
            term.topology_key == key and _selects(term, self) for term in other.anti
        )


class _Bin(msgspec.Struct):
    """Nodes that look alike, and what this fit has put on each of them."""

    view: NodeView
    nodes: int
    free: Resources
    ports: tuple[HostPort, ...] = ()
    roles: tuple[_Role, ...] = ()
    host: int = -1
    """Index of the shape, where one node of it stands alone."""


_Confined = dict[int, tuple[str, str | int]]
"""role index -> (topology key, domain) it has to stay in."""


def _bin(index: int, shape: NodeShape) -> _Bin:
    taints = blocking_taints(shape.taints)
    view = NodeView(f"#{index}", shape.labels, taints, unschedulable=False, ready=True, allocatable={})
    return _Bin(view, shape.nodes, parse_resources(shape.free))


def _attempt(order: Sequence[_Role], bins: list[_Bin], confined: _Confined) -> tuple[dict[int, int], list[_Bin]]:
    placed: dict[int, int] = {}
    for role in order:
        bins, placed[role.index] = _fill(bins, role, role.count, confined)
    return placed, bins


def _fill(bins: list[_Bin], role: _Role, count: int, confined: _Confined) -> tuple[list[_Bin], int]:
    """Put up to `count` pods into the bins, tightest first. Returns the bins after it and how many went in."""
    rest = [*bins]
    left = count
    candidates = [(bin_, _per_node(role, bin_, bins, confined)) for bin_ in bins]
    for bin_, each in sorted((pair for pair in candidates if pair[1]), key=lambda pair: _looseness(role, *pair)):
        if not left:
            break
        single = _one_per_domain(role)
        if single and not _per_node(role, bin_, rest, confined):
            continue
        whole = min(left // each, 1 if single else bin_.nodes)
        portions = [(whole, each)]
        if left - whole * each and whole < (1 if single else bin_.nodes):
            portions.append((1, left - whole * each))
        rest.remove(bin_)
        used = 0
        for nodes, pods in portions:
            if nodes:
                rest.append(
                    msgspec.structs.replace(
                        bin_,
                        nodes=nodes,
                        free=subtract(bin_.free, scale(role.charge, pods)),
                        ports=bin_.ports + role.ports,
                        roles=(*bin_.roles, role),
                    )
                )
                used += nodes
                left -= nodes * pods
        if used < bin_.nodes:
            rest.append(msgspec.structs.replace(bin_, nodes=bin_.nodes - used))
    return rest, count - left


def _per_node(role: _Role, bin_: _Bin, bins: Iterable[_Bin], confined: _Confined) -> int:
    """How many pods of the role one node of the bin takes."""
    if _barrier(role, bin_, bins, confined):
        return 0
    each = fit_count(role.charge, bin_.free)
    if each > 1 and (role.ports or role.repels(role, HOSTNAME) or _one_per_domain(role)):
        return 1
    return each


def _barrier(role: _Role, bin_: _Bin, bins: Iterable[_Bin], confined: _Confined) -> str:
    """What but room keeps the role off the bin; "" if nothing does."""
    violation = constraint_violation(role.constraints, bin_.view)
    if violation:
        return violation
    if role.index in confined:
        key, domain = confined[role.index]
        here: str | int | None = bin_.host if key == HOSTNAME else bin_.view.labels.get(key)
        if here != domain:
            return AFFINITY_UNMET
    if role.ports and ports_conflict(role.ports, bin_.ports):
        return PORTS_TAKEN
    if any(role.repels(other, HOSTNAME) for other in bin_.roles):
        return ANTI_AFFINITY_UNMET
    for key in _domain_keys(role):
        value = bin_.view.labels.get(key)
        if value is not None and any(
            role.repels(other, key) for each in bins if each.view.labels.get(key) == value for other in each.roles
        ):
            return ANTI_AFFINITY_UNMET
    return ""


def _domain_keys(role: _Role) -> set[str]:
    return {term.topology_key for term in role.anti if term.topology_key != HOSTNAME}


def _one_per_domain(role: _Role) -> bool:
    return any(role.repels(role, key) for key in _domain_keys(role))


def _looseness(role: _Role, bin_: _Bin, each: int) -> tuple[int, float, str]:
    """Order of filling: nodes without devices the role has no use for, then those left fullest."""
    idle = sum(1 for name in bin_.free if "/" in name and name not in role.charge)
    left = subtract(bin_.free, scale(role.charge, each))
    shares = [max(0, left.get(name, 0)) / units for name, units in bin_.free.items() if units > 0]
    return idle, sum(shares), bin_.view.name


def _orders(roles: Sequence[_Role], bins: list[_Bin]) -> Iterator[Sequence[_Role]]:
    hardest = _hardest_first(roles, bins)
    yield hardest
    if len(hardest) <= 3:
        yield from (order for order in permutations(hardest) if list(order) != hardest)


def _hardest_first(roles: Iterable[_Role], bins: list[_Bin]) -> list[_Role]:
    """Fewest places for what it wants first."""
    total: Resources = {}
    for bin_ in bins:
        for name, units in bin_.free.items():
            total[name] = total.get(name, 0) + units * bin_.nodes

    def ease(role: _Role) -> tuple[float, float, int]:
        places = sum(_per_node(role, bin_, (), {}) * bin_.nodes for bin_ in bins)
        return places / max(1, role.count), -dominant_share(role.charge, total), role.index

    return sorted(roles, key=ease)


def _together(roles: Sequence[_Role], bins: list[_Bin]) -> Iterator[tuple[_Confined, list[_Bin]]]:
    """Ways to confine roles that must share a topology domain with others of the gang (required pod affinity)."""
    by_key: dict[str, list[_Role]] = {}
    for role in roles:
        for term in role.pod_class.affinity:
            if any(_selects(term, other) for other in roles):
                by_key.setdefault(term.topology_key, []).append(role)
    choices: list[list[tuple[str, str | int]]] = []
    for key in by_key:
        domains: set[str | int] = (
            set(range(len(bins))) if key == HOSTNAME else {b.view.labels[key] for b in bins if key in b.view.labels}
        )
        if domains:
            choices.append([(key, domain) for domain in sorted(domains, key=str)])
    for count, picked in enumerate(product(*choices)):
        if count == _MOST_CHOICES:
            return
        confined: _Confined = {role.index: choice for choice in picked for role in by_key[choice[0]]}
        chosen = bins
        for key, domain in picked:
            if key == HOSTNAME and isinstance(domain, int):
                chosen = _one_apart(chosen, domain)
        yield confined, chosen


def _one_apart(bins: list[_Bin], index: int) -> list[_Bin]:
    """One node of the indexed bin stands alone, so that it can be named."""
    bin_ = bins[index]
    alone = msgspec.structs.replace(bin_, nodes=1, host=index)
    others = [msgspec.structs.replace(bin_, nodes=bin_.nodes - 1)] if bin_.nodes > 1 else []
    return [*bins[:index], alone, *bins[index + 1 :], *others]


def _selects(term: AffinityTerm, role: _Role) -> bool:
    namespace, labels = role.pod_class.subject
    return term.matches(namespace, dict(labels), NO_LABELS)


def _known_part(constraints: NodeConstraints, unknown: Collection[str]) -> NodeConstraints:
    """The constraints without what shapes cannot answer: labels they do not carry, node names."""
    if constraints.free or (not constraints.label_keys.intersection(unknown) and not _names_nodes(constraints)):
        return constraints
    selector = tuple(each for each in constraints.selector if each.key not in unknown)
    terms: tuple[NodeTerm, ...] | None = None
    if constraints.terms is not None:
        terms = tuple(
            NodeTerm(tuple(each for each in term.expressions if each.key not in unknown)) for term in constraints.terms
        )
    return NodeConstraints(constraints.tolerations, selector, terms)


def _names_nodes(constraints: NodeConstraints) -> bool:
    return any(term.fields for term in constraints.terms or ())


def _why(roles: Sequence[_Role], placed: Sequence[int], bins: list[_Bin]) -> tuple[Resources, str]:
    """What the pods left over lack: amounts of the resources that are short on the nodes nearest to taking one more."""
    short: Resources = {}
    reason = ""
    for role, done in zip(roles, placed, strict=True):
        missing = role.count - done
        if missing <= 0:
            continue
        barriers: Counter[str] = Counter()
        lacks: Counter[tuple[str, ...]] = Counter()
        for bin_ in bins:
            barrier = _barrier(role, bin_, bins, {})
            if barrier:
                barriers[barrier] += bin_.nodes
            else:
                lacks[tuple(sorted(shortage(role.charge, bin_.free)))] += bin_.nodes
        roomy = lacks.pop((), 0)
        if lacks:
            fewest = min(len(names) for names in lacks)
            nearest = max((names for names in lacks if len(names) == fewest), key=lambda names: (lacks[names], names))
            for name in nearest:
                short[name] = short.get(name, 0) + missing * role.charge[name]
        elif not reason:
            reason = AFFINITY_UNMET if roomy else barriers.most_common(1)[0][0] if barriers else NO_ROOM
    devices_first = sorted(short, key=lambda name: ("/" not in name, name))
    return {name: short[name] for name in devices_first}, reason
