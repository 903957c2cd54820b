"""How much of a gang fits into reported node shapes, and what is short where it does not.

Exact for one class; several classes go hardest first, packing tightly (a greedy answer that may be a little low on
tight mixes; the reservation in the member decides). Not looked at, because shapes do not tell: other pods' ports and
affinities, spread, and demands on the host name.
"""

from collections.abc import Iterable, Sequence

import msgspec

from kube.objects.capacity import NodeShape
from kube.objects.node_predicates import NodeView, constraint_violation, ports_conflict
from kube.objects.pod_class import PodClass
from kube.objects.pod_constraints import HOSTNAME, AffinityTerm, NodeConstraints, NodeTerm
from kube.objects.resources import UNBOUNDED, Resources, dominant_share, fit_count, parse_resources, shortage


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
    """What the pods left over ask for of the resources that keep them out, most wanting first."""
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
    demands: Sequence[Demand], shapes: Iterable[NodeShape], promised: Sequence[Demand] = ()
) -> LargestFit:
    """How many pods of `demands` fit into `shapes` after `promised` ones took their room.

    Raises QuantityError if a shape's free vector is not made of quantities.
    """
    ...
