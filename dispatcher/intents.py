"""What a hub job and everything around it ask for now: one pure reading of job, policies, tree and namespace."""

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from dispatcher.dependencies import Dependency, dependencies
from dispatcher.job_reader import read_job
from dispatcher.jobs import Job
from dispatcher.observations import HubJobView, Intent
from dispatcher.policies import Policy, match
from dispatcher.queues import QUEUE_NAME, choose_queue
from dispatcher.quota import Ask, ask_for
from dispatcher.quota_tree import NO_TREE, Tree, allowed_quotas, home
from kube.objects.meta import Json, ObjectMeta
from kube.objects.names import FINALIZER, JOB_ID


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """Of one namespace, at one moment."""

    policies: Sequence[Policy] = ()
    tree: Tree = NO_TREE
    queues: Mapping[str, Json] = {}
    """Hand-made ones, by name."""
    namespace_annotations: Mapping[str, str] = {}
    priority_classes: Mapping[str, int] = {}
    default_priority: int = 0
    """Value of the globalDefault PriorityClass."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    view: HubJobView
    job: Job | None = None
    """None: invalid as written; view.problem says why."""
    policy: Policy | None = None
    intent: Intent | None = None
    ask: Ask | None = None
    """None: not through the quota tree, or no quota is its own (view.hold)."""
    queue: str = ""
    """The hand-made queue it waits in; "": its quota's own."""
    warnings: tuple[str, ...] = ()
    constraint: str = ""
    """Digest of what else decides where the gang fits: equal digests and components fit alike."""

    def dependencies(self) -> list[Dependency]:
        """What has to exist beside the copy; empty unless the policy says propagateDeps."""
        if self.job is None or self.policy is None or not self.policy.propagate_deps:
            return []
        return dependencies(role.template for role in self.job.roles)


def read(metadata: ObjectMeta, document: Json, around: Surroundings, current_policy: str = "") -> Reading:
    """`current_policy`: name in the job's binding, which keeps the job while it matches. Never raises for bad input."""
    reading = read_job(document)
    job = reading.job
    view = HubJobView(
        uid=metadata.uid,
        job_id=metadata.annotation(JOB_ID),
        finalizer=FINALIZER in metadata.finalizers,
        deleting=metadata.deletion_timestamp is not None,
    )
    if job is None:
        problem = "; ".join(p.message for p in reading.problems)
        policy_name = _would_match(document, around.policies, current_policy)
        view = msgspec.structs.replace(view, problem=problem, policy=policy_name)
        return Reading(view=view, warnings=reading.warnings)
    policy = match(around.policies, job, current_policy)
    view = msgspec.structs.replace(
        view, suspended=job.held, ttl_seconds=job.run_policy.ttl_seconds_after_finished,
        policy=policy.name if policy else "",
    )  # fmt: skip
    if policy is None:
        return Reading(view=view, job=job, warnings=reading.warnings)
    ask, hold = _ask(job, policy, around)
    queue = ""
    if ask is not None:
        chosen = choose_queue(job.annotations.get(QUEUE_NAME, ""), ask.path, around.queues)
        queue, hold = chosen.name, chosen.reason
    if policy.dispatching_suspended:
        hold = f"PropagationPolicy {policy.name} suspends dispatching"
    intent = Intent(
        policy=policy.name,
        queued=policy.queued,
        quota="/".join(ask.path) if ask else "",
        components=job.components(),
        min_member=job.gang_min,
        priority=job.priority(around.priority_classes, around.default_priority, policy.priority_class),
    )
    return Reading(
        view=msgspec.structs.replace(view, hold=hold),
        job=job,
        policy=policy,
        intent=intent,
        ask=ask,
        queue=queue,
        warnings=reading.warnings,
        constraint=_constraint(job, policy),
    )


def _ask(job: Job, policy: Policy, around: Surroundings) -> tuple[Ask | None, str]:
    if not policy.queued:
        return None, ""
    found = home(around.tree, job.namespace, job.quota_label, allowed_quotas(around.namespace_annotations))
    if found.path is None:
        return None, found.reason
    return ask_for(found.path, job.total_request(), preemptible=job.preemptible), ""


def _would_match(document: Json, policies: Sequence[Policy], current: str) -> str:
    """A job that cannot be read still belongs to its policy: so that it gets a binding that says what is wrong."""
    metadata = document.get("metadata", {})
    kind, api_version = document.get("kind"), document.get("apiVersion")
    labels = metadata.get("labels") or {}
    for policy in sorted(policies, key=lambda p: (p.name != current, -p.priority, p.name)):
        for selector in policy.selectors:
            if (selector.api_version, selector.kind) != (api_version, kind):
                continue
            if selector.name and selector.name != metadata.get("name"):
                continue
            if selector.labels is not None and not selector.name and not selector.labels.matches(labels):
                continue
            return policy.name
    return ""


_PLACING = ("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "runtimeClassName", "hostNetwork")


def _constraint(job: Job, policy: Policy) -> str:
    parts: list[object] = [policy.name, policy.uid, policy.generation, job.priority_class_names()]
    for role in job.roles:
        spec = role.template.get("spec") or {}
        parts.append([role.name, *(spec.get(field) for field in _PLACING)])
        parts.append([c.get("ports") for c in spec.get("containers") or () if isinstance(c, dict)])
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:16]
