"""The elastic quota ledger: who is charged what, where, and what still fits.

In the style of Kueue's `resource_node.go`: a node's charge is its own jobs' plus, for each child, that child's charge,
which never counts as less than what the child does not lend. Whole amounts throughout. One entry per binding id,
released exactly as charged, where it was charged (koordinator#931).
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from dispatcher.quota_tree import MAX_JOBS, NodePath, QuotaNode, Tree, ancestors
from kube.objects.binding import Charge
from kube.objects.quantity import format_amount
from kube.objects.resources import Resources, add_into, format_resources, parse_resources


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    path: NodePath
    """The leaf."""
    amounts: Resources
    """Job total, with `kube-queue/max-jobs` 1 in it; see `ask_for`."""
    preemptible: bool = True


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    charged_at: NodePath
    """As recorded in the binding."""
    home: NodePath
    """The node of the tree in force that is charged for it; see `home_of`."""
    amounts: Resources
    preemptible: bool = True


class Blocked(msgspec.Struct, frozen=True, kw_only=True):
    """The first limit, from leaf to root, that an ask would break."""

    path: NodePath
    resource: str
    bound: Literal["max", "min", "tree"]
    """"min": a non-preemptible job beyond what is guaranteed; "tree": the leaf is not in the tree."""
    asked: int = 0
    used: int = 0
    limit: int = 0

    @property
    def message(self) -> str:
        """As in "queue root/child-2: max-jobs 1 of 1 used"."""
        queue = f"queue {'/'.join(self.path)}"
        if self.bound == "tree":
            return f"{queue}: not a leaf of the quota tree"
        used, limit, asked = (format_amount(self.resource, units) for units in (self.used, self.limit, self.asked))
        guaranteed = " guaranteed" if self.bound == "min" else ""
        if self.resource == MAX_JOBS:
            return f"{queue}: max-jobs {used} of {limit}{guaranteed} used"
        return f"{queue}: {self.resource} {asked} asked, {used} of {limit}{guaranteed} used"


def ask_for(path: NodePath, total: Mapping[str, int], *, preemptible: bool = True) -> Ask:
    """Every job counts one against max-jobs, zero-request jobs included (K9)."""
    return Ask(path=path, amounts={**{k: v for k, v in total.items() if v}, MAX_JOBS: 1}, preemptible=preemptible)


def charge_of(ask: Ask) -> Charge:
    """For the binding: the exact vector as canonical quantities."""
    return Charge(path=list(ask.path), amounts=format_resources(ask.amounts), non_preemptible=not ask.preemptible)


def home_of(tree: Tree, charged_at: NodePath) -> NodePath:
    """Where an entry counts in this tree: its own node; if that was moved, the node of that name; if it is gone, the
    nearest node above it that is left; () if there is none (no tree)."""
    for path in ancestors(charged_at):
        if path in tree.nodes:
            return path
        if path[-1] in tree.by_name:
            return tree.by_name[path[-1]]
    return ()


class _Use:
    """What a node of the tree is charged."""

    __slots__ = ("charged", "guaranteed_use", "held", "node", "used")

    def __init__(self, node: QuotaNode) -> None:
        self.node = node
        self.used: Resources = {}
        """Sum of live entries at and below."""
        self.guaranteed_use: Resources = {}
        """The part of `used` that is not preemptible."""
        self.charged: Resources = {}
        """`used`, with each child counted as at least what it does not lend."""
        self.held: Resources = {}
        """What is kept free for claimants."""

    def to_parent(self, resource: str) -> int:
        return max(self.charged.get(resource, 0), self.node.held_back(resource))

    def to_parent_with(self, resource: str, extra: int) -> int:
        """How much more the parent is charged if this node is charged `extra` more."""
        return max(self.charged.get(resource, 0) + extra, self.node.held_back(resource)) - self.to_parent(resource)


class Ledger:
    """Mutable, owned by one loop. All operations are O(depth x resources) but `retree`."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._entries: dict[str, Entry] = {}
        self._holds: dict[str, Ask] = {}
        self._use: dict[NodePath, _Use] = {}
        self.retree(tree)

    @property
    def tree(self) -> Tree:
        return self._tree

    def blocked(self, ask: Ask, binding_id: str = "") -> Blocked | None:
        """None: charging it breaks no max of the leaf or any ancestor, nor, if not preemptible, any min (K2, K3).
        What is held for other bindings than `binding_id` counts as used.

        Only resources it asks for are compared, so that a limit lowered below use stops new use of that resource and
        nothing else."""
        if not self._tree.is_leaf(ask.path):
            return Blocked(path=ask.path, resource="", bound="tree")
        more = ask.amounts
        own = self._holds.get(binding_id)
        for path in ancestors(ask.path):
            use = self._use[path]
            held = own.amounts if own is not None and path == own.path[: len(path)] else {}
            for resource, units in ask.amounts.items():
                limit = use.node.max.get(resource)
                if limit is None or units <= 0:
                    continue
                others = use.held.get(resource, 0) - held.get(resource, 0)
                # What reaches this node of the ask; all of it counts against true use, which may be above the limit
                # while within what a child holds back, after a tree was edited.
                for used, extra in (
                    (use.charged.get(resource, 0) + others, more[resource]),
                    (use.used.get(resource, 0) + others, units),
                ):
                    if extra > 0 and used + extra > limit:
                        return Blocked(path=path, resource=resource, bound="max", asked=extra, used=used, limit=limit)
            if not ask.preemptible:
                beyond = _beyond_guarantee(use, path, ask.amounts)
                if beyond is not None:
                    return beyond
            more = {resource: use.to_parent_with(resource, extra) for resource, extra in more.items()}
        return None

    def charge(self, binding_id: str, ask: Ask) -> None:
        """Idempotent for the same ask; a different ask for a charged id raises ValueError. Does not check limits: what
        was admitted is charged, whatever the limits have become."""
        known = self._entries.get(binding_id)
        if known is not None:
            if (known.charged_at, known.amounts, known.preemptible) == (ask.path, ask.amounts, ask.preemptible):
                return
            raise ValueError(f"binding {binding_id} is charged {known.amounts} at {known.charged_at} already: {ask}")
        entry = Entry(
            charged_at=ask.path,
            home=home_of(self._tree, ask.path),
            amounts=dict(ask.amounts),
            preemptible=ask.preemptible,
        )
        self._entries[binding_id] = entry
        self._apply(entry, 1)

    def charge_recorded(self, binding_id: str, charge: Charge) -> None:
        """Charge from a binding's record (restart). Raises QuantityError (a ValueError) for a damaged record."""
        amounts = parse_resources(charge.amounts)
        self.charge(binding_id, Ask(path=tuple(charge.path), amounts=amounts, preemptible=not charge.non_preemptible))

    def release(self, binding_id: str) -> Entry | None:
        """Give back exactly what was charged; None if nothing was (released already)."""
        entry = self._entries.pop(binding_id, None)
        if entry is not None:
            self._apply(entry, -1)
        return entry

    def hold(self, binding_id: str, ask: Ask) -> None:
        """Keep room for a claimant: freed room goes to nobody else until `unhold` (F12). Replaces an earlier hold."""
        self.unhold(binding_id)
        self._holds[binding_id] = ask
        self._apply_hold(ask, 1)

    def unhold(self, binding_id: str) -> bool:
        """Whether there was a hold."""
        ask = self._holds.pop(binding_id, None)
        if ask is not None:
            self._apply_hold(ask, -1)
        return ask is not None

    def holds(self) -> Mapping[str, Ask]:
        return self._holds

    def retree(self, tree: Tree) -> None:
        """Put another tree in force; use follows the live entries, in-flight ones included (K6, K7)."""
        self._tree = tree
        self._use = {path: _Use(node) for path, node in tree.nodes.items()}
        for path in reversed(tree.nodes):
            use = self._use[path]
            if len(path) > 1:
                parent = self._use[path[:-1]]
                for resource in {*use.charged, *use.node.lend_limit}:
                    add_into(parent.charged, {resource: use.to_parent(resource)})
        for binding_id, entry in self._entries.items():
            moved = msgspec.structs.replace(entry, home=home_of(tree, entry.charged_at))
            self._entries[binding_id] = moved
            self._apply(moved, 1)
        for ask in self._holds.values():
            self._apply_hold(ask, 1)

    def entries(self) -> Mapping[str, Entry]:
        return self._entries

    def used(self, path: NodePath) -> Resources:
        """Sum of the live entries at and below `path` (without what is held back for children), no zeros."""
        use = self._use.get(path)
        return {resource: units for resource, units in use.used.items() if units} if use else {}

    def room(self, path: NodePath, resource: str) -> int | None:
        """What a preemptible ask at `path` may still take: the smallest over the path; None is unlimited, below zero
        after limits were lowered."""
        room: int | None = None
        true_room: int | None = None
        for length in range(1, len(path) + 1):
            use = self._use[path[:length]]
            if room is not None:
                room += use.to_parent(resource) - use.charged.get(resource, 0)
            limit = use.node.max.get(resource)
            if limit is not None:
                room = _least(room, limit - use.charged.get(resource, 0))
                true_room = _least(true_room, limit - use.used.get(resource, 0))
        return room if true_room is None or room is None else min(room, true_room)

    def borrowed(self, path: NodePath) -> Resources:
        """Use above min, per resource, only where positive. Jobs are counted only where min names max-jobs."""
        use = self._use[path]
        least = use.node.min
        return {
            resource: units - least.get(resource, 0)
            for resource, units in use.used.items()
            if units > least.get(resource, 0) and (resource != MAX_JOBS or resource in least)
        }

    def share(self, path: NodePath) -> float:
        """Dominant share: the largest use / min over the resources that min names. Below 1: under its guarantee; a
        node without a min never is (infinite)."""
        use = self._use.get(path)
        if use is None:
            return float("inf")
        shares = [use.used.get(resource, 0) / units for resource, units in use.node.min.items() if units > 0]
        return max(shares, default=float("inf"))

    def _apply_hold(self, ask: Ask, sign: Literal[1, -1]) -> None:
        for path in ancestors(home_of(self._tree, ask.path)):
            add_into(self._use[path].held, ask.amounts, sign)

    def _apply(self, entry: Entry, sign: Literal[1, -1]) -> None:
        more = {resource: sign * units for resource, units in entry.amounts.items()}
        for path in ancestors(entry.home):
            use = self._use[path]
            add_into(use.used, entry.amounts, sign)
            if not entry.preemptible:
                add_into(use.guaranteed_use, entry.amounts, sign)
            parents = {resource: use.to_parent_with(resource, extra) for resource, extra in more.items()}
            add_into(use.charged, more)
            more = parents


def _least(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)


def _beyond_guarantee(use: _Use, path: NodePath, amounts: Resources) -> Blocked | None:
    """A non-preemptible job can never be asked to give back, so it must not live on borrowed room. Jobs are counted
    against min only where min names max-jobs: it limits, it does not guarantee."""
    least = use.node.min
    for resource, units in amounts.items():
        if resource == MAX_JOBS and resource not in least:
            continue
        used, limit = use.guaranteed_use.get(resource, 0), least.get(resource, 0)
        if units > 0 and used + units > limit:
            return Blocked(path=path, resource=resource, bound="min", asked=units, used=used, limit=limit)
    return None
