"""A job as muster schedules it: roles, minimums, requests, policy. Read from a document by `read_job`.

Defaults are the operator's own (training-operator 1.9 applies them in memory only, so a stored object stays as
written and whoever counts must default first).
"""

from collections.abc import Mapping

import msgspec

from dispatcher.kinds import JobKind
from kube.objects.binding import Component
from kube.objects.meta import Json
from kube.objects.resources import Resources, add_into, format_resources

SUSPEND_ANNOTATION = "scheduling.x-k8s.io/suspend"
"""Value "true": held (Kube Queue); any other value is no hold (K17)."""
QUOTA_LABELS = ("quota.scheduling.alibabacloud.com/name", "quota.scheduling.koordinator.sh/name")
PREEMPTIBLE_LABELS = ("quota.scheduling.alibabacloud.com/preemptible", "quota.scheduling.koordinator.sh/preemptible")


class Problem(msgspec.Struct, frozen=True):
    """Why an object cannot be used. `message` is whole (it names the field itself) and says what to do."""

    field: str
    message: str


class Role(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    """"Master" or "Worker"."""
    name: str
    """"master" or "worker"."""
    replicas: int
    min_replicas: int
    """Smallest number of this role without which the gang must not land."""
    request: Resources
    """Effective request of one pod (KEP-753 arithmetic)."""
    template: Json
    """{metadata, spec} as written; not to be changed in place."""
    priority_class: str = ""


class SchedulingPolicy(msgspec.Struct, frozen=True, kw_only=True):
    min_available: int | None = None
    queue: str = ""
    priority_class: str = ""
    schedule_timeout_seconds: int | None = None


class RunPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Policy fields merged from both places; runPolicy wins over the older spec-level ones."""

    clean_pod_policy: str | None = None
    ttl_seconds_after_finished: int | None = None
    active_deadline_seconds: int | None = None
    backoff_limit: int | None = None
    suspend: bool = False
    scheduling: SchedulingPolicy = SchedulingPolicy()


class Job(msgspec.Struct, frozen=True, kw_only=True):
    kind: JobKind
    namespace: str
    name: str
    uid: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deleting: bool = False
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    roles: tuple[Role, ...]
    """Only roles that exist, in the order of the kind's table."""
    gang_min: int
    """Smallest number of pods, over all roles, without which the gang must not land."""
    run_policy: RunPolicy = RunPolicy()
    document: Json = {}
    """As read; not to be changed in place."""

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)."""
        return (self.namespace, self.name)

    @property
    def held(self) -> bool:
        """The user's own hold: runPolicy.suspend, or annotation scheduling.x-k8s.io/suspend "true"."""
        return self.run_policy.suspend or self.annotations.get(SUSPEND_ANNOTATION) == "true"

    @property
    def pods(self) -> int:
        return sum(role.replicas for role in self.roles)

    @property
    def preemptible(self) -> bool:
        """True unless a label of either spelling says "false"."""
        return all(self.labels.get(label, "true").lower() != "false" for label in PREEMPTIBLE_LABELS)

    @property
    def quota_label(self) -> str:
        """Name of the quota the user asks for, "" for the namespace's own. Alibaba's spelling wins."""
        return next((self.labels[label] for label in QUOTA_LABELS if self.labels.get(label)), "")

    def role(self, name: str) -> Role | None:
        return next((role for role in self.roles if role.name == name), None)

    def total_request(self) -> Resources:
        """Sum over roles of replicas x pod request."""
        total: Resources = {}
        for role in self.roles:
            add_into(total, role.request, role.replicas)
        return total

    def components(self) -> list[Component]:
        """As the binding records them."""
        return [
            Component(
                name=role.name,
                replicas=role.replicas,
                min_replicas=role.min_replicas,
                request=format_resources(role.request),
            )
            for role in self.roles
        ]

    def priority_class_names(self) -> tuple[str, ...]:
        """Distinct PriorityClasses that pods of the job name, sorted: a member without one refuses the pods."""
        return tuple(sorted({role.priority_class for role in self.roles if role.priority_class}))

    def priority(self, classes: Mapping[str, int], default: int = 0, policy_class: str = "") -> int:
        """Priority in the queue: of the policy's class if there is one, else the highest over the roles, so that the
        order of a map never matters (K14), else of schedulingPolicy.priorityClass. A role without a class and a class
        that the hub does not have count `default` (the value of the globalDefault class)."""
        names = self.priority_class_names() or (self.run_policy.scheduling.priority_class,)
        if policy_class:
            return classes.get(policy_class, default)
        values = [classes.get(name, default) for name in names]
        if any(not role.priority_class for role in self.roles) and self.priority_class_names():
            values.append(default)
        return max(values)
