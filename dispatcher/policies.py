"""PropagationPolicy document -> `Policy`; which policy a job falls under.

Fields that make no sense for a gang (which goes to exactly one cluster) or that are not built are named in a problem or
a warning, never silently ignored. Field meanings: Karmada PropagationPolicy v1alpha1 and the ACK One additions.
"""

from collections.abc import Iterable, Mapping

import msgspec

from dispatcher.jobs import Job, Problem
from kube.objects.meta import Json
from kube.objects.pods import Toleration


class Expression(msgspec.Struct, frozen=True):
    """metav1.LabelSelectorRequirement."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class Selector(msgspec.Struct, frozen=True, kw_only=True):
    """metav1.LabelSelector; empty matches everything."""

    labels: tuple[tuple[str, str], ...] = ()
    expressions: tuple[Expression, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        raise NotImplementedError


class ResourceSelector(msgspec.Struct, frozen=True, kw_only=True):
    api_version: str
    kind: str
    namespace: str = ""
    name: str = ""
    labels: Selector | None = None


class ClusterAffinity(msgspec.Struct, frozen=True, kw_only=True):
    names: tuple[str, ...] = ()
    """Empty: any."""
    exclude: tuple[str, ...] = ()
    labels: Selector | None = None


class Failover(msgspec.Struct, frozen=True, kw_only=True):
    """failover.application."""

    toleration_seconds: int = 300
    purge_mode: str = "Graciously"
    grace_period_seconds: int | None = None


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    uid: str = ""
    generation: int = 0
    priority: int = 0
    selectors: tuple[ResourceSelector, ...]
    gang: bool = True
    queued: bool = False
    """suspension.scheduling: jobs go through the quota tree."""
    dispatching_suspended: bool = False
    suspended_clusters: tuple[str, ...] = ()
    """suspension.dispatchingOnClusters."""
    propagate_deps: bool = False
    failover: Failover | None = None
    affinities: tuple[ClusterAffinity, ...] = ()
    """Ordered groups; the first that has room wins. Empty: every cluster."""
    tolerations: tuple[Toleration, ...] = ()


class PolicyReading(msgspec.Struct, frozen=True, kw_only=True):
    policy: Policy | None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()


def read_policy(document: Json) -> PolicyReading:
    """Never raises for bad input."""
    raise NotImplementedError


def matches(policy: Policy, job: Job) -> bool:
    """Any of the policy's selectors selects the job; policies of the job's own namespace only."""
    raise NotImplementedError


def match(policies: Iterable[Policy], job: Job) -> Policy | None:
    """The policy a job falls under: an explicit name beats labels beats kind alone; then the higher priority; then the
    alphabetically first name (Karmada's rule, deterministic)."""
    raise NotImplementedError


def idle_text(policy: Policy, jobs: Iterable[Job]) -> str:
    """"" if some job matches, else why each selector matches nothing and what exists instead."""
    raise NotImplementedError
