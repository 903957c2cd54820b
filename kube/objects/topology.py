"""Rules about where *other* pods sit: required pod affinity and anti-affinity, hard topology spread.

Evaluated as kube-scheduler's InterPodAffinity and PodTopologySpread filters do, over placed pods and members placed in
the same plan alike. Kept incrementally: `place` and `remove` are exact inverses, so a plan can be tried and undone.

A pod is seen through its labels: pass all of them for pods of others; for members of a plan the class's own suffice if
the class was made with `label_keys` (see `PodClass.rule_keys`, `TopologyState.selector_keys`, `template_classes`).

Pods are counted by (namespace, labels), not one by one; counts per topology domain are made at the first question
that needs them and kept up to date from then on. A cluster without such rules pays one dictionary entry per pod.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeVar

from kube.objects.node_predicates import NodeView, selects, tolerates_all
from kube.objects.pod_class import NO_LABELS, PodClass, Subject
from kube.objects.pod_constraints import AffinityTerm, NodeConstraints, SpreadConstraint
from kube.objects.selectors import Labels

AFFINITY_UNMET = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY_UNMET = "node(s) didn't match pod anti-affinity rules"
EXISTING_ANTI_AFFINITY_UNMET = "node(s) didn't satisfy existing pods anti-affinity rules"
SPREAD_UNMET = "node(s) didn't match pod topology spread constraints"
SPREAD_LABEL_MISSING = SPREAD_UNMET + " (missing required label)"

_Key = TypeVar("_Key")


class TopologyState:
    """Who sits where, as topology rules see it. Not copied for a plan: place, look, remove.

    nodes: every node of the cluster (domains without a pod count for spread). namespace_labels: labels of namespaces,
    for namespaceSelector; read when a rule is first evaluated, `reset` after they change.
    """

    __slots__ = ("_existing", "_groups", "_namespaces", "_nodes", "_owners", "_rivals", "_sits", "_spreads", "_tallies")

    def __init__(
        self, nodes: Iterable[NodeView] = (), namespace_labels: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        self._nodes: dict[str, NodeView] = {node.name: node for node in nodes}
        self._namespaces: Mapping[str, Mapping[str, str]] = namespace_labels or {}
        self._sits: defaultdict[Subject, dict[tuple[str, bool], int]] = defaultdict(dict)
        """subject -> (node, terminating) -> pods."""
        self._owners: dict[AffinityTerm, dict[str, int]] = {}
        """anti-affinity term -> node -> placed pods that own it."""
        self._existing: dict[AffinityTerm, dict[str, int]] = {}
        """anti-affinity term -> domain -> placed pods that own it."""
        self._groups: dict[tuple[AffinityTerm, ...], _Group] = {}
        self._tallies: dict[AffinityTerm, _Group] = {}
        self._spreads: dict[tuple[object, ...], _Spread] = {}
        self._rivals: dict[Subject, tuple[AffinityTerm, ...]] = {}

    def concerns(self, pod_class: PodClass, labels: Labels | None = None) -> bool:
        """Some rule may apply to pods of this class; False means `allows` is True everywhere, now."""
        return pod_class.couples or bool(self._owners and self._rivals_of(_subject(pod_class, labels)))

    def allows(self, pod_class: PodClass, node: NodeView, labels: Labels | None = None) -> bool:
        """May one more pod of this class go to this node, next to all pods placed so far?"""
        return self.reason(pod_class, node, labels) is None

    def reason(self, pod_class: PodClass, node: NodeView, labels: Labels | None = None) -> str | None:
        """Why not, in kube-scheduler's words; None if it may. `labels`: the pod's, where they are more than the
        class's own (`PodClass.labels`)."""
        if not pod_class.couples and not self._owners:
            return None
        subject = _subject(pod_class, labels)
        if pod_class.spread:
            verdict = self._spread_reason(pod_class, node, subject)
            if verdict is not None:
                return verdict
        if pod_class.affinity and not self._affinity_met(pod_class, node, subject):
            return AFFINITY_UNMET
        for term in pod_class.anti_affinity:
            domain = node.labels.get(term.topology_key)
            if domain is not None and self._tally(term).counts.get(domain, 0):
                return ANTI_AFFINITY_UNMET
        if self._owners:
            for term in self._rivals_of(subject):
                domain = node.labels.get(term.topology_key)
                if domain is not None and self._existing[term].get(domain, 0):
                    return EXISTING_ANTI_AFFINITY_UNMET
        return None

    def place(
        self, pod_class: PodClass, node: NodeView, labels: Labels | None = None, *, terminating: bool = False
    ) -> None:
        """A pod of this class sits on this node. labels: all of the pod's labels, for pods of others.

        A terminating pod still holds its place for affinity, but no longer counts for spread (kubernetes#87621).
        """
        self._move(pod_class, node, labels, terminating=terminating, step=1)

    def remove(
        self, pod_class: PodClass, node: NodeView, labels: Labels | None = None, *, terminating: bool = False
    ) -> None:
        """Undo one `place` with the same arguments. Raises KeyError if there was none."""
        self._move(pod_class, node, labels, terminating=terminating, step=-1)

    @property
    def selector_keys(self) -> frozenset[str]:
        """Pod label keys that anti-affinity of placed pods looks at: what `pod_class(label_keys=…)` has to keep."""
        return frozenset(key for term in self._owners for key in term.selector.keys)

    def set_node(self, node: NodeView) -> None:
        """A node came or changed. Costs a recount at the next question if its labels or taints differ."""
        known = self._nodes.get(node.name)
        self._nodes[node.name] = node
        if known is None or known.labels != node.labels or known.taints != node.taints:
            self.reset()

    def forget_node(self, name: str) -> None:
        """The node is gone; its pods stay placed until they are removed, but are in no domain."""
        if self._nodes.pop(name, None) is not None:
            self.reset()

    def reset(self) -> None:
        """Drop derived counts; they are made anew at the next question."""
        self._groups.clear()
        self._tallies.clear()
        self._spreads.clear()
        self._rivals.clear()
        self._existing = {term: self._by_domain(term.topology_key, sits) for term, sits in self._owners.items()}

    # affinity

    def _affinity_met(self, pod_class: PodClass, node: NodeView, subject: Subject) -> bool:
        group = self._group(pod_class.affinity)
        met = True
        for term in pod_class.affinity:
            domain = node.labels.get(term.topology_key)
            if domain is None:
                return False
            if not group.counts_by_key[term.topology_key].get(domain, 0):
                met = False
        if met:
            return True
        # The first of a series with affinity to itself may start anywhere (interpodaffinity/filtering.go).
        return group.pods == 0 and group.selects(subject, self._namespace_labels(subject))

    def _group(self, terms: tuple[AffinityTerm, ...]) -> "_Group":
        group = self._groups.get(terms)
        if group is None:
            group = self._groups[terms] = self._counted(_Group(terms))
        return group

    def _tally(self, term: AffinityTerm) -> "_Group":
        tally = self._tallies.get(term)
        if tally is None:
            tally = self._tallies[term] = self._counted(_Group((term,)))
        return tally

    def _counted(self, group: "_Group") -> "_Group":
        for subject, sits in self._sits.items():
            if group.selects(subject, self._namespace_labels(subject)):
                for (name, _), pods in sits.items():
                    group.add(self._labels(name), pods)
        return group

    # anti-affinity that placed pods own

    def _rivals_of(self, subject: Subject) -> tuple[AffinityTerm, ...]:
        """Anti-affinity terms of placed pods that select this pod."""
        found = self._rivals.get(subject)
        if found is None:
            labels, namespace_labels = dict(subject[1]), self._namespace_labels(subject)
            found = tuple(term for term in self._owners if term.matches(subject[0], labels, namespace_labels))
            self._rivals[subject] = found
        return found

    def _by_domain(self, key: str, sits: Mapping[str, int]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for name, pods in sits.items():
            domain = self._labels(name).get(key)
            if domain is not None:
                counts[domain] = counts.get(domain, 0) + pods
        return counts

    # spread

    def _spread_reason(self, pod_class: PodClass, node: NodeView, subject: Subject) -> str | None:
        labels = dict(subject[1])
        for index, constraint in enumerate(pod_class.spread):
            domain = node.labels.get(constraint.topology_key)
            if domain is None:
                return SPREAD_LABEL_MISSING
            spread = self._spread(pod_class, index)
            own = 1 if constraint.selector.matches(labels) else 0
            if spread.pods_in(domain) + own - spread.minimum() > constraint.max_skew:
                return SPREAD_UNMET
        return None

    def _spread(self, pod_class: PodClass, index: int) -> "_Spread":
        keys = tuple(constraint.topology_key for constraint in pod_class.spread)
        key = (pod_class.spread[index], keys, pod_class.constraints, pod_class.namespace)
        spread = self._spreads.get(key)
        if spread is None:
            spread = _Spread(pod_class.spread[index], keys, pod_class.constraints, pod_class.namespace)
            for node in self._nodes.values():
                spread.admit(node)
            for subject, sits in self._sits.items():
                if spread.selects(subject):
                    for (name, terminating), pods in sits.items():
                        if not terminating:
                            spread.add(name, pods)
            self._spreads[key] = spread
        return spread

    # changes

    def _move(
        self, pod_class: PodClass, node: NodeView, labels: Labels | None, *, terminating: bool, step: int
    ) -> None:
        subject = _subject(pod_class, labels)
        _count(self._sits[subject], (node.name, terminating), step)
        if not self._sits[subject]:
            del self._sits[subject]
        for term in pod_class.anti_affinity:
            self._own(term, node, step)
        if not (self._groups or self._tallies or self._spreads):
            return
        namespace_labels = self._namespace_labels(subject)
        where = self._labels(node.name)
        for groups in (self._groups.values(), self._tallies.values()):
            for group in groups:
                if group.selects(subject, namespace_labels):
                    group.add(where, step)
        if not terminating:
            for spread in self._spreads.values():
                if spread.selects(subject):
                    spread.add(node.name, step)

    def _own(self, term: AffinityTerm, node: NodeView, step: int) -> None:
        if term not in self._owners:
            self._owners[term], self._existing[term] = {}, {}
            self._rivals.clear()
        _count(self._owners[term], node.name, step)
        domain = self._labels(node.name).get(term.topology_key)
        if domain is not None:
            _count(self._existing[term], domain, step)
        if not self._owners[term]:
            del self._owners[term], self._existing[term]
            self._rivals.clear()

    def _labels(self, node: str) -> Labels:
        view = self._nodes.get(node)
        return view.labels if view is not None else NO_LABELS

    def _namespace_labels(self, subject: Subject) -> Labels:
        return self._namespaces.get(subject[0], NO_LABELS)


class _Group:
    """Pods that match *all* of some affinity terms, per topology key and domain."""

    __slots__ = ("counts_by_key", "pods", "selected", "terms")

    def __init__(self, terms: tuple[AffinityTerm, ...]) -> None:
        self.terms = terms
        self.counts_by_key: dict[str, dict[str, int]] = {term.topology_key: {} for term in terms}
        self.pods = 0
        """Matching pods in any domain of any of the keys (kube-scheduler: the count map is empty)."""
        self.selected: dict[Subject, bool] = {}

    @property
    def counts(self) -> dict[str, int]:
        """Domain -> pods, of a single term."""
        return self.counts_by_key[self.terms[0].topology_key]

    def selects(self, subject: Subject, namespace_labels: Labels) -> bool:
        known = self.selected.get(subject)
        if known is None:
            labels = dict(subject[1])
            known = all(term.matches(subject[0], labels, namespace_labels) for term in self.terms)
            self.selected[subject] = known
        return known

    def add(self, node_labels: Labels, pods: int) -> None:
        for key, counts in self.counts_by_key.items():
            domain = node_labels.get(key)
            if domain is not None:
                counts[domain] = counts.get(domain, 0) + pods
                self.pods += pods


class _Spread:
    """Pods per domain of one spread constraint, and the smallest count, kept in step."""

    __slots__ = ("_domain_of", "_domains", "_having", "_least", "constraint", "keys", "namespace", "owner", "selected")

    def __init__(
        self, constraint: SpreadConstraint, keys: tuple[str, ...], owner: NodeConstraints, namespace: str
    ) -> None:
        self.constraint = constraint
        self.keys = keys
        self.owner = owner
        self.namespace = namespace
        self.selected: dict[Subject, bool] = {}
        self._domain_of: dict[str, str] = {}
        """node -> domain, of nodes that count: all keys of the pod's constraints present, policies honoured."""
        self._domains: dict[str, int] = {}
        self._having: dict[int, int] = {}
        """pods -> number of domains with so many."""
        self._least = 0

    def admit(self, node: NodeView) -> None:
        """Before any `add`."""
        if not all(key in node.labels for key in self.keys):
            return
        if self.constraint.honor_affinity and not selects(self.owner, node):
            return
        if self.constraint.honor_taints and not tolerates_all(self.owner, node):
            return
        domain = node.labels[self.constraint.topology_key]
        self._domain_of[node.name] = domain
        if domain not in self._domains:
            self._domains[domain] = 0
            self._having[0] = self._having.get(0, 0) + 1

    def selects(self, subject: Subject) -> bool:
        """An empty selector counts no placed pod (podtopologyspread countPodsMatchSelector)."""
        known = self.selected.get(subject)
        if known is None:
            selector = self.constraint.selector
            known = (
                subject[0] == self.namespace
                and not selector.everything
                and selector.matches(dict(subject[1]))
            )
            self.selected[subject] = known
        return known

    def add(self, node: str, pods: int) -> None:
        domain = self._domain_of.get(node)
        if domain is None:
            return
        before = self._domains[domain]
        self._domains[domain] = before + pods
        _count(self._having, before, -1)
        _count(self._having, before + pods, 1)
        self._least = min(self._least, before + pods)
        while self._least not in self._having:
            self._least += 1

    def pods_in(self, domain: str) -> int:
        return self._domains.get(domain, 0)

    def minimum(self) -> int:
        """Fewest pods of any domain; 0 while there are fewer domains than minDomains."""
        return 0 if len(self._domains) < self.constraint.min_domains else self._least


def _subject(pod_class: PodClass, labels: Labels | None) -> Subject:
    return pod_class.subject if labels is None else (pod_class.namespace, tuple(sorted(labels.items())))


def _count(counts: dict[_Key, int], key: _Key, step: int) -> None:
    """`counts[key] += step`; no zero stays. Raises KeyError instead of going below zero."""
    value = counts.get(key, 0) + step
    if value > 0:
        counts[key] = value
    elif value == 0:
        counts.pop(key, None)
    else:
        raise KeyError(f"nothing of {key!r} is placed")
