"""ElasticQuotaTree (scheduling.sigs.k8s.io/v1beta1) document -> a checked `Tree`, or everything that is wrong with it.

A tree takes effect whole or not at all: with any problem the last good one stays in force. Absent max = unlimited,
absent min = 0. The rules are compared on exact quantities; the tree then holds whole amounts (cpu in thousandths,
everything else in units), rounded down, which is exact too, because use is counted in whole amounts.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import msgspec

from dispatcher.documents import at, mapping, text, whole
from dispatcher.jobs import Problem
from kube.objects.meta import Json
from kube.objects.names import QUOTA_TREE_NAMESPACE
from kube.objects.quantity import QuantityError, base_resource, parse_quantity
from kube.objects.resources import Resources

MAX_JOBS = "kube-queue/max-jobs"
LEND_LIMIT = "alibabacloud.com/lendlimit"
AVAILABLE_QUOTA = "kube-queue/available-quota"

NodePath = tuple[str, ...]
"""Names from the root to a node."""
Exact = dict[str, Fraction]


class QuotaNode(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    path: NodePath
    min: Resources
    max: Resources
    lend_limit: Resources = {}
    """How much of min may be lent to others; absent key: all of it."""
    namespaces: tuple[str, ...] = ()
    children: tuple[NodePath, ...] = ()

    @property
    def full_name(self) -> str:
        """As in "root/child-2"."""
        return "/".join(self.path)

    def held_back(self, resource: str) -> int:
        """What is never lent: the node charges at least this to its parent, used or not."""
        if resource not in self.lend_limit:
            return 0
        return max(0, self.min.get(resource, 0) - self.lend_limit[resource])


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    nodes: dict[NodePath, QuotaNode]
    """Parents before children. Empty: no tree (every queued job is held)."""
    leaf_of: dict[str, NodePath] = {}
    """namespace -> its leaf."""
    by_name: dict[str, NodePath] = {}
    uid: str = ""
    generation: int = 0

    def is_leaf(self, path: NodePath) -> bool:
        return path in self.nodes and not self.nodes[path].children


NO_TREE = Tree(nodes={})


def dump_tree(tree: Tree) -> str:
    """For `load_tree`: nodes alone, the rest follows from them."""
    return msgspec.json.encode(list(tree.nodes.values())).decode()


def load_tree(dumped: str) -> Tree:
    """Raises msgspec.DecodeError, for what was edited by hand."""
    nodes = msgspec.json.decode(dumped, type=list[QuotaNode])
    return Tree(
        nodes={node.path: node for node in nodes},
        leaf_of={namespace: node.path for node in nodes for namespace in node.namespaces},
        by_name={node.name: node.path for node in nodes},
    )


class TreeReading(msgspec.Struct, frozen=True, kw_only=True):
    tree: Tree | None
    """None if and only if there are problems."""
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()


class _Draft(msgspec.Struct, kw_only=True):
    """A node as written, with its place."""

    field: str
    name: str
    path: NodePath
    parent: "_Draft | None"
    min: Exact
    max: Exact
    lend_limit: Exact
    namespaces: list[str]
    children: "list[_Draft]" = []


def read_tree(document: Json) -> TreeReading:
    """Never raises for bad input."""
    reader = _Reader()
    metadata = mapping(document.get("metadata"))
    namespace = text(metadata.get("namespace"))
    if namespace != QUOTA_TREE_NAMESPACE:
        reader.problem(
            "metadata.namespace", f"{namespace!r} is not {QUOTA_TREE_NAMESPACE}: the one quota tree has to be there"
        )
    root = at(document, ("spec", "root"))
    drafts: list[_Draft] = []
    if isinstance(root, dict):
        drafts = reader.drafts(root)
        reader.check_names(drafts)
        reader.check_amounts(drafts)
        reader.check_namespaces(drafts)
    else:
        reader.problem("spec.root", "is missing: describe the tree's root")
    if reader.problems:
        return TreeReading(tree=None, problems=tuple(reader.problems), warnings=tuple(reader.warnings))
    tree = Tree(
        nodes={draft.path: _node(draft) for draft in drafts},
        leaf_of={namespace: draft.path for draft in drafts for namespace in draft.namespaces},
        by_name={draft.name: draft.path for draft in drafts},
        uid=text(metadata.get("uid")),
        generation=whole(metadata.get("generation")) or 0,
    )
    return TreeReading(tree=tree, warnings=tuple(reader.warnings))


def _node(draft: _Draft) -> QuotaNode:
    return QuotaNode(
        name=draft.name,
        path=draft.path,
        min=_whole_amounts(draft.min),
        max=_whole_amounts(draft.max),
        lend_limit=_whole_amounts(draft.lend_limit),
        namespaces=tuple(draft.namespaces),
        children=tuple(child.path for child in draft.children),
    )


def _whole_amounts(exact: Exact) -> Resources:
    return {name: math.floor(value * 1000 if base_resource(name) == "cpu" else value) for name, value in exact.items()}


class _Reader:
    """Collects what is wrong while the parts are read."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[str] = []

    def problem(self, field: str, what: str) -> None:
        self.problems.append(Problem(field, f"{field} {what}"))

    def drafts(self, root: Json) -> list[_Draft]:
        """All nodes, parents before children. Not recursive: the depth is the user's."""
        found: list[_Draft] = []
        waiting: list[tuple[Json, str, _Draft | None]] = [(root, "spec.root", None)]
        for document, field, parent in iter(lambda: waiting.pop(0) if waiting else None, None):
            name = text(document.get("name"))
            draft = _Draft(
                field=field,
                name=name,
                path=(*(parent.path if parent else ()), name),
                parent=parent,
                min=self.amounts(f"{field}.min", document.get("min")),
                max=self.amounts(f"{field}.max", document.get("max")),
                lend_limit=self.attributes(f"{field}.attributes", document.get("attributes")),
                namespaces=self.namespaces(f"{field}.namespaces", document.get("namespaces")),
                children=[],
            )
            found.append(draft)
            if parent is not None:
                parent.children.append(draft)
            children = document.get("children")
            if children is not None and not isinstance(children, list):
                self.problem(f"{field}.children", "is not a list of nodes")
                continue
            for index, child in enumerate(children or ()):
                if isinstance(child, dict):
                    waiting.append((child, f"{field}.children[{index}]", draft))
                else:
                    self.problem(f"{field}.children[{index}]", "is not a node: give it a name, min and max")
        return found

    def amounts(self, field: str, value: Any) -> Exact:
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.problem(field, "is not a map of resources to quantities")
            return {}
        exact: Exact = {}
        for resource, quantity in value.items():
            if quantity is None:
                continue
            try:
                exact[resource] = parse_quantity(quantity)
            except QuantityError as error:
                self.problem(f"{field}.{resource}", f"is not a quantity: {error}")
                continue
            if exact[resource] < 0:
                self.problem(f"{field}.{resource}", f"{quantity} is negative: leave it out or use 0 or more")
        return exact

    def attributes(self, field: str, value: Any) -> Exact:
        """The lend limit; other attributes are warned about."""
        attributes = mapping(value)
        for name in attributes:
            if name != LEND_LIMIT:
                self.warnings.append(f"{field}.{name} has no effect")
        limit = attributes.get(LEND_LIMIT)
        if limit is None:
            return {}
        field = f"{field}.{LEND_LIMIT}"
        try:
            parsed = json.loads(limit) if isinstance(limit, str) else limit
        except ValueError as error:
            self.problem(field, f'is not JSON ({error}): write for example \'{{"cpu": "4"}}\'')
            return {}
        parts = parsed if isinstance(parsed, list) else [parsed]
        exact: Exact = {}
        for part in parts:
            exact.update(self.amounts(field, part))
        return exact

    def namespaces(self, field: str, value: Any) -> list[str]:
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            self.problem(field, "is not a list of namespace names")
            return []
        return value

    def check_names(self, drafts: list[_Draft]) -> None:
        seen: dict[str, str] = {}
        for draft in drafts:
            field = f"{draft.field}.name"
            if not draft.name or "/" in draft.name:
                self.problem(field, f"{draft.name!r} is no name: every node needs one, without '/'")
            elif draft.name in seen:
                self.problem(field, f"{draft.name!r} is also the name of {seen[draft.name]}: give each node its own")
            else:
                seen[draft.name] = draft.field

    def check_amounts(self, drafts: list[_Draft]) -> None:
        """Checks min <= max, children's min <= parent's min, root.min == root.max (ElasticQuotaTree documentation)."""
        for draft in drafts:
            for resource, least in sorted(draft.min.items()):
                if resource in draft.max and least > draft.max[resource]:
                    self.problem(
                        f"{draft.field}.min.{resource}",
                        f"{_told(least)} is more than max {_told(draft.max[resource])}: lower min or raise max",
                    )
            for resource in sorted({resource for child in draft.children for resource in child.min}):
                total = sum((child.min.get(resource, Fraction(0)) for child in draft.children), Fraction(0))
                own = draft.min.get(resource, Fraction(0))
                if total > own:
                    self.problem(
                        f"{draft.field}.min.{resource}",
                        f"{_told(own)} is less than its children's {_told(total)} together: raise it or lower theirs",
                    )
        root = drafts[0]
        for resource in sorted(root.min.keys() | root.max.keys()):
            low, high = root.min.get(resource), root.max.get(resource)
            if low is None or high is None or low < high:
                self.problem(
                    f"{root.field}.min.{resource}",
                    f"{_told(low)} is not the root's max {_told(high)}: the root's min and max have to be equal",
                )

    def check_namespaces(self, drafts: list[_Draft]) -> None:
        seen: dict[str, str] = {}
        for draft in drafts:
            if draft.namespaces and draft.children:
                self.problem(
                    f"{draft.field}.namespaces", "is on a node with children: namespaces go to leaves; move them to one"
                )
            for namespace in draft.namespaces:
                if namespace in seen:
                    self.problem(
                        f"{draft.field}.namespaces",
                        f"has {namespace!r}, which {seen[namespace]} has too: a namespace belongs to one leaf",
                    )
                else:
                    seen[namespace] = draft.field


def _told(value: Fraction | None) -> str:
    if value is None:
        return "(absent)"
    return str(value) if value.denominator == 1 else f"{float(value):g}"


def choose_tree(documents: Iterable[Json]) -> tuple[Json | None, dict[tuple[str, str], str]]:
    """Which of all ElasticQuotaTree objects counts: the one in kube-system, the oldest if there are more. The rest,
    by (namespace, name), with what is wrong with each."""

    def age(document: Json) -> tuple[str, str]:
        return text(at(document, ("metadata", "creationTimestamp"))), _key(document)[1]

    ranked = sorted(documents, key=age)
    chosen = next((document for document in ranked if _key(document)[0] == QUOTA_TREE_NAMESPACE), None)
    rest: dict[tuple[str, str], str] = {}
    for document in ranked:
        if document is chosen:
            continue
        namespace, name = _key(document)
        if namespace == QUOTA_TREE_NAMESPACE and chosen is not None:
            rest[namespace, name] = f"not in force: {_key(chosen)[1]!r} is older, and only one tree counts; remove one"
        else:
            rest[namespace, name] = f"not in force: the quota tree has to be in namespace {QUOTA_TREE_NAMESPACE}"
    return chosen, rest


def _key(document: Json) -> tuple[str, str]:
    return text(at(document, ("metadata", "namespace"))), text(at(document, ("metadata", "name")))


class Home(msgspec.Struct, frozen=True):
    """The leaf a job is charged to, or why it is held."""

    path: NodePath | None
    reason: str = ""


def home(tree: Tree, namespace: str, quota_label: str = "", allowed: Iterable[str] = ()) -> Home:
    """`quota_label`: Job.quota_label. A named quota must be a leaf and the namespace's own, or be listed in `allowed`
    (`allowed_quotas` of the namespace), where "*" allows all."""
    if not tree.nodes:
        return Home(
            None,
            f"held: there is no valid ElasticQuotaTree in {QUOTA_TREE_NAMESPACE}: apply one, or take "
            "suspension.scheduling out of the policy",
        )
    own = tree.leaf_of.get(namespace)
    if not quota_label:
        if own is None:
            return Home(None, f"held: namespace {namespace!r} is on no leaf of the quota tree: add it to one")
        return Home(own)
    path = tree.by_name.get(quota_label)
    if path is None:
        return Home(None, f"held: quota {quota_label!r} is not in the quota tree: correct the job's label")
    if not tree.is_leaf(path):
        return Home(None, f"held: quota {quota_label!r} has children, jobs go to leaves: correct the job's label")
    if path != own and not {"*", quota_label, "/".join(path)} & set(allowed):
        return Home(
            None,
            f"held: namespace {namespace!r} may not use quota {quota_label!r}: name it in the namespace's annotation "
            f"{AVAILABLE_QUOTA}",
        )
    return Home(path)


def allowed_quotas(namespace_annotations: Mapping[str, str]) -> list[str]:
    """Names in the namespace's annotation kube-queue/available-quota, comma separated."""
    return [name.strip() for name in namespace_annotations.get(AVAILABLE_QUOTA, "").split(",") if name.strip()]


def ancestors(path: NodePath) -> Iterator[NodePath]:
    """The path itself and every node above it, the root last."""
    for length in range(len(path), 0, -1):
        yield path[:length]
