"""The elastic quota ledger: who is charged what, where, and what still fits.

In the style of Kueue's `resource_node.go`: a node's charge is its own jobs' plus, for each child, the child's charge,
which never falls below what that child does not lend. Exact integers throughout. One entry per binding id; released
exactly as charged, where it was charged (K5, koordinator#931).
"""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec
from kube.objects.resources import Resources

from dispatcher.quota_tree import Tree
from kube.objects.binding import Charge

NodePath = tuple[str, ...]


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
    """Node of the tree in force that is charged for it; shorter where the leaf has gone."""
    amounts: Resources
    preemptible: bool = True


class Blocked(msgspec.Struct, frozen=True, kw_only=True):
    """The first limit, from leaf to root, that an ask would break."""

    path: NodePath
    resource: str
    bound: Literal["max", "min", "tree"]
    """"min": a non-preemptible job beyond what is guaranteed; "tree": the leaf is not in the tree."""
    asked: int
    used: int
    limit: int

    @property
    def message(self) -> str:
        """"queue root/child-2: max-jobs 1 of 1 used"."""
        raise NotImplementedError


def ask_for(path: NodePath, total: Mapping[str, int], *, preemptible: bool = True) -> Ask:
    """Every job counts one against max-jobs, zero-request jobs included (K9)."""
    raise NotImplementedError


def charge_of(ask: Ask) -> Charge:
    """For the binding: the exact vector as canonical quantities."""
    raise NotImplementedError


class Ledger:
    """Mutable, owned by one loop. All operations are O(depth x resources) but `retree` and `rebuild`."""

    def __init__(self, tree: Tree) -> None:
        raise NotImplementedError

    @property
    def tree(self) -> Tree:
        raise NotImplementedError

    def blocked(self, ask: Ask) -> Blocked | None:
        """None: charging it breaks no max of the leaf or any ancestor, nor, non-preemptible, any min."""
        raise NotImplementedError

    def charge(self, binding_id: str, ask: Ask) -> None:
        """Idempotent for the same ask; a different ask for a charged id raises ValueError. Does not check limits: what
        was admitted is charged, whatever the limits have become."""
        raise NotImplementedError

    def charge_recorded(self, binding_id: str, charge: Charge, *, preemptible: bool = True) -> None:
        """Charge from a binding's record (restart). Raises QuantityError (ValueError) for a damaged record."""
        raise NotImplementedError

    def release(self, binding_id: str) -> Entry | None:
        """Give back exactly what was charged; None if nothing was (released already)."""
        raise NotImplementedError

    def retree(self, tree: Tree) -> None:
        """Put another tree in force; use follows the live entries (K6, K7)."""
        raise NotImplementedError

    def entries(self) -> Mapping[str, Entry]:
        raise NotImplementedError

    def used(self, path: NodePath) -> Resources:
        """Sum of the live entries at and below `path` (without what is held back for children)."""
        raise NotImplementedError

    def room(self, path: NodePath, resource: str) -> int | None:
        """What a preemptible ask at `path` may still take: the smallest over the path; None is unlimited, below zero
        after limits were lowered."""
        raise NotImplementedError

    def borrowed(self, path: NodePath) -> Resources:
        """Use above min, per resource, only where positive."""
        raise NotImplementedError

    def share(self, path: NodePath, extra: Mapping[str, int] | None = None) -> float:
        """Dominant share of the leaf: largest use / min over the resources that min names (inf where used without a
        min, 0 where unused). Below 1: under its guarantee."""
        raise NotImplementedError


def recompute(tree: Tree, entries: Iterable[Entry]) -> dict[NodePath, Resources]:
    """Use of every node from scratch: what the ledger must always equal."""
    raise NotImplementedError
