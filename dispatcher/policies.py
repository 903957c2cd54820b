"""PropagationPolicy document -> `Policy`; which policy a job falls under.

Field meanings: Karmada PropagationPolicy v1alpha1 and the ACK One additions. A field that is not carried out is never
silently ignored: if ignoring it would put a job where its owner does not want it, the policy has a problem and selects
nothing; otherwise there is a warning.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from dispatcher.documents import at, mapping, maps, text, texts, whole
from dispatcher.jobs import Job, Problem
from dispatcher.kinds import KINDS
from kube.objects.meta import Json
from kube.objects.pods import Toleration
from kube.objects.selectors import LabelSelector, SelectorError, label_selector

DEFAULT_TOLERATION_SECONDS = 300
DEFAULT_PURGE_MODE = "Graciously"
PURGE_MODES = ("Immediately", "Directly", "Graciously", "Gracefully", "Never")


class ResourceSelector(msgspec.Struct, frozen=True, kw_only=True):
    api_version: str
    kind: str
    namespace: str = ""
    name: str = ""
    """Wins over `labels`, which then says nothing (Karmada ResourceSelector)."""
    labels: LabelSelector | None = None


class ClusterAffinity(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    """Of a group in clusterAffinities."""
    clusters: tuple[str, ...] = ()
    """Empty: any."""
    exclude: tuple[str, ...] = ()
    labels: LabelSelector | None = None


class Failover(msgspec.Struct, frozen=True, kw_only=True):
    """failover.application."""

    toleration_seconds: int = DEFAULT_TOLERATION_SECONDS
    purge_mode: str = DEFAULT_PURGE_MODE
    grace_period_seconds: int | None = None


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    uid: str = ""
    generation: int = 0
    priority: int = 0
    preemptive: bool = False
    """preemption: Always: takes jobs over from a policy of lower priority that had them first."""
    selectors: tuple[ResourceSelector, ...]
    gang: bool = True
    """Written so; without it a job is one gang in one cluster all the same (with a warning)."""
    queued: bool = False
    """suspension.scheduling: jobs go through the quota tree, and none reaches a member before it is admitted."""
    dispatching_suspended: bool = False
    """suspension.dispatching: nothing goes to any member."""
    suspended_clusters: tuple[str, ...] = ()
    """suspension.dispatchingOnClusters."""
    propagate_deps: bool = False
    failover: Failover | None = None
    affinities: tuple[ClusterAffinity, ...] = ()
    """Groups in order; the first with room wins. Empty: every cluster."""
    tolerations: tuple[Toleration, ...] = ()
    priority_class: str = ""
    """schedulePriority with priorityClassSource KubePriorityClass: overrules the pods' own classes in the queue."""


class PolicyReading(msgspec.Struct, frozen=True, kw_only=True):
    policy: Policy | None
    """None if and only if there are problems."""
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()


def read_policy(document: Json) -> PolicyReading:
    """Never raises for bad input."""
    reader = _Reader()
    spec = mapping(document.get("spec"))
    metadata = mapping(document.get("metadata"))
    namespace = text(metadata.get("namespace"))
    suspension = mapping(spec.get("suspension"))
    placement = mapping(spec.get("placement"))
    policy = Policy(
        namespace=namespace,
        name=text(metadata.get("name")),
        uid=text(metadata.get("uid")),
        generation=whole(metadata.get("generation")) or 0,
        priority=whole(spec.get("priority")) or 0,
        preemptive=spec.get("preemption") == "Always",
        selectors=reader.selectors(spec.get("resourceSelectors"), namespace),
        gang=reader.one_cluster(placement),
        queued=suspension.get("scheduling") is True,
        dispatching_suspended=suspension.get("dispatching") is True,
        suspended_clusters=texts(at(suspension, ("dispatchingOnClusters", "clusterNames"))),
        propagate_deps=spec.get("propagateDeps") is True,
        failover=reader.failover(mapping(spec.get("failover"))),
        affinities=reader.affinities(placement),
        tolerations=tuple(_toleration(item) for item in maps(placement.get("clusterTolerations"))),
        priority_class=reader.priority_class(mapping(spec.get("schedulePriority"))),
    )
    reader.unsupported(spec, placement)
    return PolicyReading(
        policy=None if reader.problems else policy,
        problems=tuple(reader.problems),
        warnings=tuple(reader.warnings),
    )


class _Reader:
    """Collects what is wrong while the parts are read."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[str] = []

    def problem(self, field: str, what: str) -> None:
        self.problems.append(Problem(field, f"{field} {what}"))

    def selectors(self, value: Any, namespace: str) -> tuple[ResourceSelector, ...]:
        if not maps(value):
            self.problem("spec.resourceSelectors", "is empty: name at least one apiVersion and kind to select")
        selectors = []
        for index, item in enumerate(maps(value)):
            field = f"spec.resourceSelectors[{index}]"
            selector = ResourceSelector(
                api_version=text(item.get("apiVersion")),
                kind=text(item.get("kind")),
                namespace=text(item.get("namespace")),
                name=text(item.get("name")),
                labels=self.selector(f"{field}.labelSelector", item.get("labelSelector")),
            )
            if (selector.api_version, selector.kind) not in KINDS:
                known = ", ".join(f"{kind} ({version})" for version, kind in KINDS)
                self.warnings.append(
                    f"{field} selects {selector.kind or '(no kind)'} ({selector.api_version or 'no apiVersion'}), "
                    f"which is not scheduled here: only {known}"
                )
            if selector.namespace and selector.namespace != namespace:
                self.warnings.append(
                    f"{field}.namespace {selector.namespace!r} selects nothing: a PropagationPolicy selects in its own "
                    f"namespace ({namespace!r}) only; make one there"
                )
            if selector.name and selector.labels:
                self.warnings.append(f"{field}.labelSelector is not looked at because {field}.name is set")
            selectors.append(selector)
        return tuple(selectors)

    def selector(self, field: str, value: Any) -> LabelSelector | None:
        if value is None:
            return None
        try:
            return label_selector(value)
        except (SelectorError, TypeError, AttributeError) as error:
            self.problem(field, f"is not a label selector: {error}")
            return None

    def one_cluster(self, placement: Json) -> bool:
        """Whether the policy says Gang; what contradicts one cluster per job is a problem."""
        scheduling = mapping(placement.get("replicaScheduling"))
        kind, custom = text(scheduling.get("replicaSchedulingType")), text(scheduling.get("customSchedulingType"))
        field = "spec.placement.replicaScheduling"
        if kind == "Duplicated":
            self.problem(
                f"{field}.replicaSchedulingType",
                "Duplicated would run the same job in every cluster: use Divided with customSchedulingType: Gang",
            )
        if custom not in ("", "Gang"):
            self.problem(f"{field}.customSchedulingType", f"{custom!r} is not supported: use Gang")
        if custom != "Gang" and kind != "Duplicated":
            self.warnings.append(
                f"{field}.customSchedulingType is not Gang: a job still goes whole to exactly one cluster, or waits"
            )
        for name in ("replicaDivisionPreference", "weightPreference"):
            if scheduling.get(name):
                self.warnings.append(f"{field}.{name} has no effect: a gang is not divided over clusters")
        for index, constraint in enumerate(maps(placement.get("spreadConstraints"))):
            if (whole(constraint.get("minGroups")) or 0) > 1:
                self.problem(
                    f"spec.placement.spreadConstraints[{index}].minGroups",
                    f"{constraint['minGroups']} cannot be kept: a gang goes to exactly one cluster; set it to 1",
                )
        return custom == "Gang"

    def affinities(self, placement: Json) -> tuple[ClusterAffinity, ...]:
        single, groups = placement.get("clusterAffinity"), maps(placement.get("clusterAffinities"))
        if single is not None and groups:
            self.problem(
                "spec.placement.clusterAffinities", "cannot stand beside spec.placement.clusterAffinity: keep one"
            )
        if groups:
            return tuple(
                self.affinity(f"spec.placement.clusterAffinities[{index}]", group) for index, group in enumerate(groups)
            )
        if isinstance(single, dict):
            return (self.affinity("spec.placement.clusterAffinity", single),)
        return ()

    def affinity(self, field: str, value: Json) -> ClusterAffinity:
        if value.get("fieldSelector"):
            self.problem(
                f"{field}.fieldSelector",
                "is not supported: put provider, region or zone as labels on the MemberClusters and use labelSelector",
            )
        return ClusterAffinity(
            name=text(value.get("affinityName")),
            clusters=texts(value.get("clusterNames")),
            exclude=texts(value.get("exclude")),
            labels=self.selector(f"{field}.labelSelector", value.get("labelSelector")),
        )

    def failover(self, failover: Json) -> Failover | None:
        if failover.get("cluster"):
            self.warnings.append(
                "spec.failover.cluster has no effect: a silent cluster proves nothing, see `kubectl amc fence`"
            )
        application = failover.get("application")
        if not isinstance(application, dict):
            return None
        field = "spec.failover.application"
        mode = text(application.get("purgeMode")) or DEFAULT_PURGE_MODE
        if mode not in PURGE_MODES:
            self.problem(f"{field}.purgeMode", f"{mode!r} is not one of {', '.join(PURGE_MODES)}")
        seconds = at(application, ("decisionConditions", "tolerationSeconds"))
        tolerated = DEFAULT_TOLERATION_SECONDS if seconds is None else whole(seconds)
        if tolerated is None or tolerated < 0:
            self.problem(
                f"{field}.decisionConditions.tolerationSeconds", f"{seconds!r} is not a number of seconds of 0 or more"
            )
        if application.get("statePreservation"):
            self.warnings.append(f"{field}.statePreservation has no effect: jobs go on from their own checkpoints")
        return Failover(
            toleration_seconds=tolerated or 0,
            purge_mode=mode,
            grace_period_seconds=whole(application.get("gracePeriodSeconds")),
        )

    def priority_class(self, schedule_priority: Json) -> str:
        if not schedule_priority:
            return ""
        source = text(schedule_priority.get("priorityClassSource"))
        if source == "PodPriorityClass":
            return ""
        if source != "KubePriorityClass":
            self.problem(
                "spec.schedulePriority.priorityClassSource",
                f"{source!r} is not supported: use KubePriorityClass or PodPriorityClass",
            )
        return text(schedule_priority.get("priorityClassName"))

    def unsupported(self, spec: Json, placement: Json) -> None:
        if placement.get("workloadAffinity"):
            self.problem("spec.placement.workloadAffinity", "is not supported: use clusterAffinity")
        if spec.get("preserveResourcesOnDeletion") is True:
            self.problem(
                "spec.preserveResourcesOnDeletion",
                "true is not supported: a job's copy is deleted with the job; remove the field",
            )
        for name, instead in (
            ("association", "use propagateDeps"),
            ("dependentOverrides", "there are no override policies here"),
            ("schedulerName", "the hub has one scheduler"),
        ):
            if spec.get(name) not in (None, "", False, [], "default-scheduler"):
                self.warnings.append(f"spec.{name} has no effect: {instead}")
        if spec.get("conflictResolution") == "Overwrite":
            self.warnings.append(
                "spec.conflictResolution Overwrite has no effect: an object that is not ours is never changed (Abort)"
            )
        if spec.get("activationPreference") == "Lazy":
            self.warnings.append("spec.activationPreference Lazy has no effect: a running job never moves by itself")


def _toleration(item: Json) -> Toleration:
    return Toleration(
        key=text(item.get("key")),
        operator=text(item.get("operator")),
        value=text(item.get("value")),
        effect=text(item.get("effect")),
        toleration_seconds=whole(item.get("tolerationSeconds")),
    )


_BY_KIND, _BY_LABELS, _BY_NAME = 1, 2, 3


def _precision(selector: ResourceSelector, policy: Policy, job: Job) -> int:
    """How precisely the selector selects the job, 0 if not at all (Karmada ResourceMatchSelectorsPriority)."""
    if policy.namespace != job.namespace or selector.namespace not in ("", job.namespace):
        return 0
    if (selector.api_version, selector.kind) != (job.kind.api_version, job.kind.kind):
        return 0
    if selector.name:
        return _BY_NAME if selector.name == job.name else 0
    if selector.labels is not None:
        return _BY_LABELS if selector.labels.matches(job.labels) else 0
    return _BY_KIND


def precision(policy: Policy, job: Job) -> int:
    return max((_precision(selector, policy, job) for selector in policy.selectors), default=0)


def matches(policy: Policy, job: Job) -> bool:
    """Any of the policy's selectors selects the job; policies of the job's own namespace only."""
    return precision(policy, job) > 0


def match(policies: Iterable[Policy], job: Job, current: str = "") -> Policy | None:
    """The policy a job falls under. The higher priority wins, then the more precise selector (name, labels, kind
    alone), then the alphabetically first name (Karmada PropagationSpec.priority). `current`: the policy that has the
    job already keeps it while it matches, unless one of higher priority says `preemption: Always`."""
    ranked = sorted(
        (policy for policy in policies if matches(policy, job)),
        key=lambda policy: (-policy.priority, -precision(policy, job), policy.name),
    )
    holder = next((policy for policy in ranked if policy.name == current), None)
    if holder is None:
        return ranked[0] if ranked else None
    return next((p for p in ranked if p.preemptive and p.priority > holder.priority), holder)


def idle_text(policy: Policy, jobs: Iterable[Job]) -> str:
    """Empty if some job matches, else why each selector matches nothing and what there is instead."""
    there = [job for job in jobs if job.namespace == policy.namespace]
    if any(matches(policy, job) for job in there):
        return ""
    parts = [
        f"resourceSelectors[{index}]: {_idle_selector(selector, policy, there)}"
        for index, selector in enumerate(policy.selectors)
    ]
    return "selects nothing yet: " + "; ".join(parts)


def _idle_selector(selector: ResourceSelector, policy: Policy, there: list[Job]) -> str:
    if (selector.api_version, selector.kind) not in KINDS:
        return f"{selector.kind} ({selector.api_version}) is not scheduled here"
    if selector.namespace not in ("", policy.namespace):
        return f"namespace {selector.namespace!r} is not the policy's own ({policy.namespace!r})"
    of_kind = sum((job.kind.api_version, job.kind.kind) == (selector.api_version, selector.kind) for job in there)
    if not of_kind:
        return f"there is no {selector.kind} in namespace {policy.namespace!r}"
    wanted = f"is named {selector.name!r}" if selector.name else "has the labels of its labelSelector"
    return f"none of {of_kind} {selector.kind} in namespace {policy.namespace!r} {wanted}"
