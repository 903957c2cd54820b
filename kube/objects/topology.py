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

from kube.objects.node_predicates import NodeView
from kube.objects.pod_class import NO_LABELS, PodClass, Subject
from kube.objects.pod_constraints import AffinityTerm
from kube.objects.selectors import Labels
from kube.objects.topology_counts import AffinityCount, SpreadCount, count, keep, latest, remember

AFFINITY_UNMET = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY_UNMET = "node(s) didn't match pod anti-affinity rules"
EXISTING_ANTI_AFFINITY_UNMET = "node(s) didn't satisfy existing pods anti-affinity rules"
SPREAD_UNMET = "node(s) didn't match pod topology spread constraints"
SPREAD_LABEL_MISSING = SPREAD_UNMET + " (missing required label)"


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
        self._groups: dict[tuple[AffinityTerm, ...], AffinityCount] = {}
        self._tallies: dict[AffinityTerm, AffinityCount] = {}
        self._spreads: dict[tuple[object, ...], SpreadCount] = {}
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

    def _group(self, terms: tuple[AffinityTerm, ...]) -> AffinityCount:
        return latest(self._groups, terms) or keep(self._groups, terms, self._counted(AffinityCount(terms)))

    def _tally(self, term: AffinityTerm) -> AffinityCount:
        return latest(self._tallies, term) or keep(self._tallies, term, self._counted(AffinityCount((term,))))

    def _counted(self, group: AffinityCount) -> AffinityCount:
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
            remember(self._rivals, subject, found)
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

    def _spread(self, pod_class: PodClass, index: int) -> "SpreadCount":
        keys = tuple(constraint.topology_key for constraint in pod_class.spread)
        key = (pod_class.spread[index], keys, pod_class.constraints, pod_class.namespace)
        spread = latest(self._spreads, key)
        if spread is None:
            spread = SpreadCount(pod_class.spread[index], keys, pod_class.constraints, pod_class.namespace)
            for node in self._nodes.values():
                spread.admit(node)
            for subject, sits in self._sits.items():
                if spread.selects(subject):
                    for (name, terminating), pods in sits.items():
                        if not terminating:
                            spread.add(name, pods)
            keep(self._spreads, key, spread)
        return spread

    # changes

    def _move(
        self, pod_class: PodClass, node: NodeView, labels: Labels | None, *, terminating: bool, step: int
    ) -> None:
        subject = _subject(pod_class, labels)
        sits = self._sits[subject]
        try:
            count(sits, (node.name, terminating), step)
        finally:
            if not sits:
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
        count(self._owners[term], node.name, step)
        domain = self._labels(node.name).get(term.topology_key)
        if domain is not None:
            count(self._existing[term], domain, step)
        if not self._owners[term]:
            del self._owners[term], self._existing[term]
            self._rivals.clear()

    def _labels(self, node: str) -> Labels:
        view = self._nodes.get(node)
        return view.labels if view is not None else NO_LABELS

    def _namespace_labels(self, subject: Subject) -> Labels:
        return self._namespaces.get(subject[0], NO_LABELS)


def _subject(pod_class: PodClass, labels: Labels | None) -> Subject:
    return pod_class.subject if labels is None else (pod_class.namespace, tuple(sorted(labels.items())))
