"""A PyTorchJob document -> `Job`, or what is wrong with it, in words that say what to do.

Defaults are the operator's own (training-operator 1.9 applies them in memory only, so a stored object stays as
written and whoever counts must default first): replicas 1, restartPolicy OnFailure.
"""

from collections.abc import Mapping

import msgspec
from kube.objects.resources import Resources

from dispatcher.kinds import JobKind
from kube.objects.binding import Component
from kube.objects.meta import Json


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
    uid: str
    generation: int
    creation_timestamp: str
    deleting: bool
    labels: dict[str, str]
    annotations: dict[str, str]
    roles: tuple[Role, ...]
    """Only roles that exist and have pods, in the order of the kind's table."""
    gang_min: int
    run_policy: RunPolicy
    document: Json
    """As read; not to be changed in place."""

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)."""
        return (self.namespace, self.name)

    @property
    def held(self) -> bool:
        """The user's own hold: runPolicy.suspend, or annotation scheduling.x-k8s.io/suspend "true"."""
        raise NotImplementedError

    @property
    def pods(self) -> int:
        return sum(role.replicas for role in self.roles)

    @property
    def preemptible(self) -> bool:
        """Label quota.scheduling.{alibabacloud.com,koordinator.sh}/preemptible; true unless it says "false"."""
        raise NotImplementedError

    @property
    def quota_label(self) -> str:
        """Name of the quota the user asks for, "" for the namespace's own."""
        raise NotImplementedError

    def total_request(self) -> Resources:
        """Sum over roles of replicas x pod request."""
        raise NotImplementedError

    def components(self) -> list[Component]:
        """As the binding records them."""
        raise NotImplementedError

    def priority_class_names(self) -> tuple[str, ...]:
        """Distinct names the job refers to: pod templates, then schedulingPolicy.priorityClass; sorted."""
        raise NotImplementedError

    def priority(self, classes: Mapping[str, int], default: int = 0) -> int:
        """Highest value over the roles' classes, so that the order of a map never matters (K14). A role without a
        class counts `default` (the value of the globalDefault class); a class that the hub does not have counts
        `default` too."""
        raise NotImplementedError


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    job: Job | None
    """None if and only if there are problems."""
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    """Worth telling the user, nothing is refused for them."""


def read_job(document: Json) -> Reading:
    """Read and validate a job of any kind in the table. Never raises for bad input: it ends in `problems`."""
    raise NotImplementedError
