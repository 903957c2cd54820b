"""What a plan is asked: which members need a place, and how many of them at least."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kube.objects.pod_class import PodClass
from kube.objects.resources import Resources


@dataclass(frozen=True, slots=True)
class Demand:
    """Interchangeable members: one role and one class."""

    role: str
    pod_class: PodClass
    required: int
    """At least so many, or there is no plan."""
    wanted: int
    avoid: frozenset[str] = frozenset()
    """Nodes kube-scheduler does not offer for reasons not modelled here (volumes, claims)."""


@dataclass(frozen=True, slots=True)
class Question:
    demands: tuple[Demand, ...]
    min_total: int = 0
    """At least so many of all demands together."""
    prefer_topology_key: str = ""
    """One domain of this node label for all, if there is one."""
    free: Mapping[str, Resources] = field(default_factory=dict)
    """Nodes that count otherwise than in the ledger."""

    @property
    def wanted(self) -> int:
        return sum(demand.wanted for demand in self.demands)

    @property
    def minimum(self) -> int:
        return max(self.min_total, sum(demand.required for demand in self.demands))
