"""A member's free room as node shapes: what the hub decides "does it fit" on.

A shape is a number of nodes that look alike: same free vector rounded down, same labels and taints that matter.
Rounding is always down, so a shape never promises room that no node has. Writing: `node_shapes`; reading:
`largest_fit` in `shape_fit`.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from kube.objects.capacity import NodeShape
from kube.objects.node_predicates import NodeView
from kube.objects.nodes import Taint
from kube.objects.pod_constraints import HOSTNAME
from kube.objects.resources import Resources, format_resources

MAX_SHAPES = 256

WELL_KNOWN_LABELS = frozenset(
    {
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "node.kubernetes.io/instance-type",
        "kubernetes.io/arch",
        "kubernetes.io/os",
    }
)

MEBI, GIBI = 1 << 20, 1 << 30
_QUANTA = {"cpu": 100, "memory": 256 * MEBI, "ephemeral-storage": GIBI}
"""Millicores and bytes. Huge pages come in whole pages and devices in pieces: exact."""
_EXACT_SLOTS = 16
"""Free pod slots above this are rounded down to a multiple of it: nobody's gang hangs on the 93rd pod of a node."""

MAX_VALUES = 32
MAX_KEYS = 48


def node_shapes(
    nodes: Iterable[tuple[NodeView, Mapping[str, int]]],
    relevant_label_keys: Collection[str] = (),
    *,
    limit: int = MAX_SHAPES,
) -> tuple[list[NodeShape], int]:
    """Shapes of these (node, free) pairs, the largest first, and the number of shapes left out beyond `limit`.

    free: allocatable less charges and promises, with "pods" for free pod slots; negative counts as none. Nodes that
    are not ready or cordoned, and nodes that can take no pod at all, are in no shape. Labels kept:
    `relevant_label_keys` and the well-known ones, never the host name.
    """
    keys = sorted({*WELL_KNOWN_LABELS, *relevant_label_keys} - {HOSTNAME})
    groups: Counter[tuple[tuple[tuple[str, int], ...], tuple[tuple[str, str], ...], tuple[Taint, ...]]] = Counter()
    for node, free in nodes:
        if not node.ready or node.unschedulable:
            continue
        quantised = quantise(free)
        if not quantised.get("pods"):
            continue
        labels = node.labels
        groups[
            tuple(sorted(quantised.items())),
            tuple((key, labels[key]) for key in keys if key in labels),
            _sorted_taints(node.taints),
        ] += 1
    totals: Resources = {}
    for (free_items, _, _), count in groups.items():
        for name, units in free_items:
            totals[name] = totals.get(name, 0) + units * count

    def size(
        entry: tuple[tuple[tuple[tuple[str, int], ...], tuple[tuple[str, str], ...], tuple[Taint, ...]], int],
    ) -> tuple[float, float]:
        """Share of the free room of the member: of the resource it holds most of, then of all of them."""
        (free_items, _, _), count = entry
        shares = [units * count / totals[name] for name, units in free_items]
        return max(shares), sum(shares)

    ranked = sorted(groups.items(), key=lambda entry: (*(-share for share in size(entry)), str(entry[0])))
    shapes = [
        NodeShape(nodes=count, free=format_resources(dict(free)), labels=dict(labels), taints=list(taints))
        for (free, labels, taints), count in ranked[:limit]
    ]
    return shapes, max(0, len(ranked) - limit)


def quantise(free: Mapping[str, int]) -> Resources:
    """The vector rounded down to what shapes tell apart; nothing below zero, no zeros."""
    rounded: Resources = {}
    for name, units in free.items():
        quantum = _QUANTA.get(name, 1)
        if name == "pods" and units > _EXACT_SLOTS:
            quantum = _EXACT_SLOTS
        kept = units - units % quantum
        if kept > 0:
            rounded[name] = kept
    return rounded


def telling_label_keys(nodes: Iterable[NodeView]) -> frozenset[str]:
    """Label keys worth reporting when nobody says which matter: those that group nodes instead of naming them.

    At most 32 values each and 48 keys in all, the ones on most nodes first; never the host name, and not the
    per-feature labels of node-feature-discovery, of which a node has hundreds.
    """
    values: dict[str, set[str]] = {}
    uses: Counter[str] = Counter()
    for node in nodes:
        for key, value in node.labels.items():
            uses[key] += 1
            seen = values.setdefault(key, set())
            if len(seen) <= MAX_VALUES:
                seen.add(value)
    telling = [
        key
        for key, seen in values.items()
        if len(seen) <= MAX_VALUES
        and key != HOSTNAME
        and not key.startswith(("feature.node.kubernetes.io/", "beta.kubernetes.io/"))
    ]
    telling.sort(key=lambda key: (-uses[key], key))
    return frozenset(telling[:MAX_KEYS])


def _sorted_taints(taints: Iterable[Taint]) -> tuple[Taint, ...]:
    return tuple(sorted(taints, key=lambda taint: (taint.key, taint.value, taint.effect)))
