"""Pods per topology domain, as one affinity group or one spread constraint counts them.

Made from what is placed, then kept in step; how long they are kept is bounded here too.
"""

from typing import TypeVar

from kube.objects.node_predicates import NodeView, selects, tolerates_all
from kube.objects.pod_class import Subject
from kube.objects.pod_constraints import AffinityTerm, NodeConstraints, SpreadConstraint
from kube.objects.selectors import Labels

MAX_COUNTS = 128
"""Derived counts kept of one kind. Those not asked for longest go first and are counted anew when asked for again, so
rules of jobs long gone cost nothing."""
MAX_VERDICTS = 4096
"""Remembered answers of selectors, per selector."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class AffinityCount:
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
            remember(self.selected, subject, known)
        return known

    def add(self, node_labels: Labels, pods: int) -> None:
        for key, counts in self.counts_by_key.items():
            domain = node_labels.get(key)
            if domain is not None:
                counts[domain] = counts.get(domain, 0) + pods
                self.pods += pods


class SpreadCount:
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
            known = subject[0] == self.namespace and not selector.everything and selector.matches(dict(subject[1]))
            remember(self.selected, subject, known)
        return known

    def add(self, node: str, pods: int) -> None:
        domain = self._domain_of.get(node)
        if domain is None:
            return
        before = self._domains[domain]
        self._domains[domain] = before + pods
        count(self._having, before, -1)
        count(self._having, before + pods, 1)
        self._least = min(self._least, before + pods)
        while self._least not in self._having:
            self._least += 1

    def pods_in(self, domain: str) -> int:
        return self._domains.get(domain, 0)

    def minimum(self) -> int:
        """Fewest pods of any domain; 0 while there are fewer domains than minDomains."""
        return 0 if len(self._domains) < self.constraint.min_domains else self._least


def latest(kept: dict[_Key, _Value], key: _Key) -> _Value | None:
    """kept[key], marked as asked for last."""
    found = kept.pop(key, None)
    if found is not None:
        kept[key] = found
    return found


def keep(kept: dict[_Key, _Value], key: _Key, value: _Value) -> _Value:
    while len(kept) >= MAX_COUNTS:
        del kept[next(iter(kept))]
    kept[key] = value
    return value


def remember(verdicts: dict[_Key, _Value], key: _Key, verdict: _Value) -> None:
    if len(verdicts) >= MAX_VERDICTS:
        verdicts.clear()
    verdicts[key] = verdict


def count(counts: dict[_Key, int], key: _Key, step: int) -> None:
    """`counts[key] += step`; no zero stays. Raises KeyError instead of going below zero."""
    value = counts.get(key, 0) + step
    if value > 0:
        counts[key] = value
    elif value == 0:
        counts.pop(key, None)
    else:
        raise KeyError(f"nothing of {key!r} is placed")
