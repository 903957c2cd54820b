"""ElasticQuotaTree (scheduling.sigs.k8s.io/v1beta1) document -> a checked `Tree`, or everything that is wrong with it.

A tree takes effect whole or not at all: with any problem the last good one stays in force.
Absent max = unlimited, absent min = 0; amounts are exact (cpu in thousandths, everything else in units).
"""

from collections.abc import Iterable, Mapping

import msgspec
from kube.objects.resources import Resources

from dispatcher.jobs import Problem
from kube.objects.meta import Json

MAX_JOBS = "kube-queue/max-jobs"


class QuotaNode(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    path: tuple[str, ...]
    """From the root's name to this node's."""
    min: Resources
    max: Resources
    lend_limit: Resources = {}
    """How much of min may be lent; absent key: all of it."""
    namespaces: tuple[str, ...] = ()
    children: tuple[tuple[str, ...], ...] = ()
    """Paths."""
    attributes: dict[str, str] = {}

    @property
    def full_name(self) -> str:
        """"root/child-2"."""
        return "/".join(self.path)


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    nodes: dict[tuple[str, ...], QuotaNode]
    """Parents before children. Empty: no tree (every queued job is held)."""
    leaf_of: dict[str, tuple[str, ...]] = {}
    """namespace -> its leaf."""
    by_name: dict[str, tuple[str, ...]] = {}
    uid: str = ""
    generation: int = 0


NO_TREE = Tree(nodes={})


class TreeReading(msgspec.Struct, frozen=True, kw_only=True):
    tree: Tree | None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()


def read_tree(document: Json) -> TreeReading:
    """Never raises for bad input."""
    raise NotImplementedError


def choose_tree(documents: Iterable[Json]) -> tuple[Json | None, dict[tuple[str, str], str]]:
    """Which of all ElasticQuotaTree objects counts: the one in kube-system, the oldest if there are more. The rest,
    by (namespace, name), with what is wrong with each."""
    raise NotImplementedError


class Home(msgspec.Struct, frozen=True):
    """The leaf a job is charged to, or why it is held."""

    path: tuple[str, ...] | None
    reason: str = ""


def home(tree: Tree, namespace: str, quota_label: str, allowed: Iterable[str] = ()) -> Home:
    """`quota_label`: Job.quota_label. A named quota must be a leaf and the namespace's own, or be listed in `allowed`
    (the namespace's annotation kube-queue/available-quota); "*" there allows all."""
    raise NotImplementedError


def allowed_quotas(namespace_annotations: Mapping[str, str]) -> list[str]:
    """Names in the namespace's annotation kube-queue/available-quota, comma separated."""
    raise NotImplementedError
