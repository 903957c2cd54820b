"""Which member to ask next: candidates in order, and one reason per member that is none.

A member is judged on its reported node shapes after the room was taken off that is promised to others and that the
report does not include yet (F3). Whether the gang fits is decided by the reservation in the member; this only orders
the asking.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from dispatcher.dialects import why_not
from dispatcher.jobs import Job
from dispatcher.policies import ClusterAffinity, Policy
from dispatcher.reasons import seconds
from kube.objects.binding import ClusterReason, Component
from kube.objects.capacity import NodeShape
from kube.objects.node_predicates import tolerates
from kube.objects.nodes import Taint
from kube.objects.pod_class import plain_class, template_classes
from kube.objects.pod_constraints import HOSTNAME
from kube.objects.quantity import QuantityError
from kube.objects.resources import Resources, dominant_share, parse_resources
from kube.objects.shape_fit import Demand, LargestFit, largest_fit

SYSTEM_CLASSES = frozenset({"system-cluster-critical", "system-node-critical"})
"""Every API server has them."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """What the hub knows of a member at the moment of the decision. Ages in seconds on the hub's monotonic clock."""

    name: str
    labels: dict[str, str] = {}
    """Of the MemberCluster's metadata and spec together."""
    taints: tuple[Taint, ...] = ()
    ready: bool = False
    not_ready_seconds: float = 0
    not_ready_reason: str = ""
    report_age: float | None = None
    """None: never reported."""
    cordoned: bool = False
    fenced: bool = False
    replaced: bool = False
    """Another kube-system uid than accepted (PROTOCOL rule 17)."""
    dialect: str = ""
    scheduler_name: str = ""
    cluster_uid: str = ""
    shapes: tuple[NodeShape, ...] = ()
    shapes_left_out: int = 0
    free: Resources = {}
    """Free in all; only ranks members."""
    includes: frozenset[tuple[str, int]] = frozenset()
    """(id, epoch) that the report already counts."""
    namespaces: frozenset[str] | None = None
    """None: missing namespaces are created."""
    priority_classes: dict[str, int] | None = None
    """None: not known, not judged."""


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt of another job whose room a report may not show yet."""

    cluster: str
    job_id: str
    epoch: int
    components: tuple[Component, ...]
    job: Job | None = None
    """Where known: its templates' constraints are then honoured too."""


_Score = tuple[float, ...]
"""Lower is asked first; see `_score`."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str
    pods: int
    """How many of the gang's pods have room there now: all, or at least its minimum."""
    score: _Score


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    ranked: tuple[Candidate, ...]
    """Members where the gang fits by report, best first."""
    refused: tuple[ClusterReason, ...]
    """Sorted by cluster, one line each."""
    short: dict[str, str] = {}
    """cluster -> a resource whose lack alone refused it ("" where it is no resource): where a claim makes sense."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    report_max_age: float = 30.0
    """Seconds after which a capacity report says nothing any more."""


DEFAULTS = Settings()


def choose(
    job: Job,
    policy: Policy,
    members: Iterable[Member],
    promises: Sequence[Promise] = (),
    *,
    job_id: str = "",
    excluded: Mapping[str, str] | Iterable[str] = (),
    priority_classes: Mapping[str, int] | None = None,
    settings: Settings = DEFAULTS,
    judge_all: bool = False,
) -> Choice:
    """Candidates in the order to ask. `excluded`: members that refused this job lately, with what they said.
    `priority_classes`: the hub's; a member where one has another value is no candidate. Never raises for odd data.

    Members are judged in the order they would be asked, and, unless `judge_all`, none after the first where the whole
    gang fits: `ranked` then ends with it, and members not judged are in neither list."""
    lately = dict(excluded) if isinstance(excluded, Mapping) else dict.fromkeys(excluded, "")
    wanted = demands(job)
    promised: dict[str, list[Promise]] = {}
    for promise in promises:
        if promise.job_id != job_id:
            promised.setdefault(promise.cluster, []).append(promise)
    refused: dict[str, str] = {}
    short: dict[str, str] = {}
    ranked: list[Candidate] = []
    open_: list[tuple[_Score, Member]] = []
    for member in members:
        reason = _barred(job, policy, member, lately=lately, priority_classes=priority_classes, settings=settings)
        if reason:
            refused[member.name] = reason
        else:
            open_.append((_score(job, policy, member, _unreported_keys(wanted, member)), member))
    for score, member in sorted(open_, key=lambda pair: (pair[0], pair[1].name)):
        try:
            pods, fit = _room(job, wanted, member, promised.get(member.name, ()))
        except QuantityError as error:
            refused[member.name] = f"its capacity report is damaged ({error}): update the extender there"
            continue
        if not pods:
            refused[member.name] = fit.text + (" in the largest node shapes" if member.shapes_left_out else "")
            short[member.name] = next(iter(fit.short), "")
            continue
        ranked.append(Candidate(cluster=member.name, pods=pods, score=score))
        if pods == job.pods and not judge_all:
            break
    # The policy's groups come first, then more pods at once, then the rest of the score.
    ranked.sort(key=lambda candidate: (candidate.score[0], -candidate.pods, candidate.score, candidate.cluster))
    reasons = [ClusterReason(cluster=cluster, message=reason) for cluster, reason in sorted(refused.items())]
    return Choice(ranked=tuple(ranked), refused=tuple(reasons), short=short)


def demands(job: Job) -> list[Demand]:
    """The gang as `largest_fit` asks for it."""
    classes = template_classes(job.namespace, {role.name: role.template for role in job.roles})
    return [Demand(classes[role.name], role.replicas, role.name) for role in job.roles]


def _promised(promise: Promise) -> list[Demand]:
    if promise.job is not None:
        return demands(promise.job)
    return [
        Demand(plain_class(parse_resources(component.request)), component.replicas, component.name)
        for component in promise.components
    ]


def _room(job: Job, wanted: list[Demand], member: Member, promised: Iterable[Promise]) -> tuple[int, LargestFit]:
    """How many of the gang's pods would run there at once: all, at least the minimum, or 0."""
    others = [
        demand
        for promise in promised
        if (promise.job_id, promise.epoch) not in member.includes
        for demand in _promised(promise)
    ]
    unknown = _unreported_keys(wanted, member)
    fit = largest_fit(wanted, member.shapes, others, unknown_label_keys=unknown)
    if fit.fits:
        return job.pods, fit
    if fit.pods < job.gang_min or job.gang_min == job.pods:
        return 0, fit
    if all(placed >= role.min_replicas for placed, role in zip(fit.placed, job.roles, strict=True)):
        return fit.pods, fit
    least = [Demand(each.pod_class, role.min_replicas, each.name) for each, role in zip(wanted, job.roles, strict=True)]
    minimum = largest_fit(least, member.shapes, others, unknown_label_keys=unknown)
    return (job.gang_min if minimum.fits else 0), fit


def _unreported_keys(wanted: Iterable[Demand], member: Member) -> set[str]:
    """Node labels the gang demands and no shape carries. A report leaves out labels that tell single nodes apart, so
    such a demand is taken as met, and the member asked after those that are sure (`_score`)."""
    reported = {key for shape in member.shapes for key in shape.labels}
    return {HOSTNAME} | {key for demand in wanted for key in demand.pod_class.constraints.label_keys} - reported


def _barred(
    job: Job,
    policy: Policy,
    member: Member,
    *,
    lately: Mapping[str, str],
    priority_classes: Mapping[str, int] | None,
    settings: Settings,
) -> str:
    """Why the member is no candidate whatever room it has; "" if nothing bars it."""
    group = _group(policy, member)
    if group is None:
        return "not in the policy's clusterAffinity"
    if member.fenced:
        return "fenced"
    if member.replaced:
        return "another cluster answers under its address: accept it or correct the kubeconfig"
    if not member.ready:
        why = f" ({member.not_ready_reason})" if member.not_ready_reason else ""
        return f"not ready {seconds(member.not_ready_seconds)}{why}"
    if member.cordoned:
        return "cordoned"
    for taint in member.taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not tolerates(policy.tolerations, taint):
            value = f"={taint.value}" if taint.value else ""
            return f"taint {taint.key}{value}:{taint.effect} is not in the policy's clusterTolerations"
    if member.name in policy.suspended_clusters:
        return "the policy suspends dispatching to it"
    if member.report_age is None:
        return "no capacity report yet"
    if member.report_age > settings.report_max_age:
        return f"capacity report {seconds(member.report_age)} old"
    carried = why_not(job, member.dialect)
    if carried:
        return carried
    if member.namespaces is not None and job.namespace not in member.namespaces:
        return f"has no namespace {job.namespace!r}, and createNamespaces is off"
    missing = _classes(job, member, priority_classes)
    if missing:
        return missing
    if member.name in lately:
        return lately[member.name] or "refused this job lately"
    return ""


def _classes(job: Job, member: Member, hub: Mapping[str, int] | None) -> str:
    """PriorityClasses are never created in members: a pod that names a missing one is refused by admission."""
    if member.priority_classes is None:
        return ""
    for name in job.priority_class_names():
        if name in SYSTEM_CLASSES:
            continue
        value = member.priority_classes.get(name)
        if value is None:
            return f"has no PriorityClass {name!r}"
        if hub is not None and name in hub and hub[name] != value:
            return f"its PriorityClass {name!r} has value {value}, the hub's {hub[name]}"
    return ""


def _group(policy: Policy, member: Member) -> int | None:
    """Index of the first affinity group the member is in; 0 without affinity; None if it is in none."""
    if not policy.affinities:
        return 0
    return next((index for index, affinity in enumerate(policy.affinities) if _admits(affinity, member)), None)


def _admits(affinity: ClusterAffinity, member: Member) -> bool:
    if member.name in affinity.exclude or (affinity.clusters and member.name not in affinity.clusters):
        return False
    return affinity.labels is None or affinity.labels.matches(member.labels)


def _score(job: Job, policy: Policy, member: Member, unknown: Collection[str]) -> _Score:
    """Lower is better, compared from left to right: the policy's group order; labels the report does not tell; taints
    that only advise against it; devices that would lie idle beside the job; how loosely it fits (1 - the largest share
    it takes of any resource that is free there), so that big free rooms stay whole."""
    total = job.total_request()
    advised_against = sum(
        taint.effect == "PreferNoSchedule" and not tolerates(policy.tolerations, taint) for taint in member.taints
    )
    idle = any("/" in name and name not in total for name, units in member.free.items() if units > 0)
    return (
        _group(policy, member) or 0,
        len([key for key in unknown if key != HOSTNAME]),
        advised_against,
        idle,
        1 - dominant_share(total, member.free),
    )
