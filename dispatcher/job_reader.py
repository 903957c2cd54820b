"""Reads and validates a job's document: `read_job` -> `Job`, or what is wrong with it, in words that say what to do.

The checks are those of the training-operator 1.9 webhook (pkg/webhooks/pytorch), which a hub does not run, and those
without which pods would never come up.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from dispatcher.documents import at, mapping, maps, string_map, text, whole
from dispatcher.jobs import Job, Problem, Role, RunPolicy, SchedulingPolicy
from dispatcher.kinds import JobKind, RoleKind, kind_of
from kube.objects.meta import Json
from kube.objects.names import DEFAULT_SCHEDULER, MUSTER_SCHEDULER
from kube.objects.pod_class import template_class
from kube.objects.pod_requests import PodTemplateError
from kube.objects.quantity import QuantityError
from kube.objects.resources import Resources

LABEL_LIMIT = 63
"""DNS labels and label values: pod host names, headless Services, the job-name and pod-group labels."""
MOST_PODS = 2**31 - 1
"""minMember and every count of replicas are int32."""
LARGEST_AMOUNT = 2**63 - 1
"""Where apimachinery's `Quantity.Value` ends."""
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
CLEAN_POD_POLICIES = ("All", "Running", "None")
RESTART_POLICIES = ("Always", "OnFailure", "Never", "ExitCode")


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    job: Job | None
    """None if and only if there are problems."""
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    """Worth telling the user, nothing is refused for them."""


def read_job(document: Json) -> Reading:
    """Read and validate a job of any kind in the table. Never raises for bad input: it ends in `problems`."""
    kind = kind_of(document)
    if kind is None:
        what = f"{text(document.get('kind')) or '(no kind)'} ({text(document.get('apiVersion')) or 'no apiVersion'})"
        return Reading(job=None, problems=(Problem("kind", f"kind {what} is not scheduled here"),))
    reader = _Reader(kind, document)
    job = reader.job()
    return Reading(
        job=None if reader.problems else job, problems=tuple(reader.problems), warnings=tuple(reader.warnings)
    )


class _Reader:
    """Collects what is wrong while the parts are read; parts that cannot be read are left out."""

    def __init__(self, kind: JobKind, document: Json) -> None:
        self.kind = kind
        self.document = document
        self.metadata = mapping(document.get("metadata"))
        self.name = text(self.metadata.get("name"))
        self.namespace = text(self.metadata.get("namespace"))
        self.roles_field = ".".join(kind.roles_path)
        self.problems: list[Problem] = []
        self.warnings: list[str] = []

    def problem(self, field: str, what: str) -> None:
        self.problems.append(Problem(field, f"{field} {what}"))

    def job(self) -> Job:
        policy = self.run_policy()
        roles = [role for role in map(self.role, self.role_kinds()) if role is not None]
        gang_min = self.gang_min(roles, policy.scheduling.min_available)
        fixed = sum(role.replicas for role in roles if self.is_fixed(role.key))
        roles = [
            role if self.is_fixed(role.key) else msgspec.structs.replace(role, min_replicas=max(0, gang_min - fixed))
            for role in roles
        ]
        self.check_name(roles)
        self.compare_priorities(roles)
        return Job(
            kind=self.kind,
            namespace=self.namespace,
            name=self.name,
            uid=text(self.metadata.get("uid")),
            generation=whole(self.metadata.get("generation")) or 0,
            creation_timestamp=text(self.metadata.get("creationTimestamp")),
            deleting=bool(self.metadata.get("deletionTimestamp")),
            labels=string_map(self.metadata.get("labels")),
            annotations=string_map(self.metadata.get("annotations")),
            roles=tuple(roles),
            gang_min=gang_min,
            run_policy=policy,
            document=self.document,
        )

    # Roles

    def role_kinds(self) -> Iterator[RoleKind]:
        """Rows of the kind's table that the document has."""
        specs = at(self.document, self.kind.roles_path)
        expected = " or ".join(role.key for role in self.kind.roles)
        if not isinstance(specs, dict) or not specs:
            self.problem(self.roles_field, f"is empty: describe at least one of {expected}")
            return
        for key in specs:
            if self.kind.role(key) is None:
                meant = next((role.key for role in self.kind.roles if role.key.lower() == str(key).lower()), "")
                advice = f": write {meant}" if meant else f": rename it to {expected}, or remove it"
                self.problem(self.roles_field, f"key {key!r} is not {expected}{advice}")
        yield from (role for role in self.kind.roles if role.key in specs)

    def is_fixed(self, key: str) -> bool:
        role = self.kind.role(key)
        return role is not None and role.fixed_replicas is not None

    def role(self, row: RoleKind) -> Role | None:
        field = f"{self.roles_field}.{row.key}"
        spec = at(self.document, (*self.kind.roles_path, row.key))
        if not isinstance(spec, dict):
            self.problem(field, "is empty: give it a pod template, or remove it")
            return None
        replicas = self.replicas(field, spec.get(self.kind.replicas_field), row)
        restart = spec.get("restartPolicy")
        if restart not in (None, "", *RESTART_POLICIES):
            self.problem(f"{field}.restartPolicy", f"{restart!r} is not one of {', '.join(RESTART_POLICIES)}")
        template_field = f"{field}.{self.kind.template_field}"
        template = spec.get(self.kind.template_field)
        if not isinstance(template, dict) or not isinstance(template.get("spec"), dict):
            self.problem(f"{template_field}.spec", "is missing: a role needs a pod template")
            return None
        self.check_containers(template_field, template)
        self.check_scheduling(template_field, template)
        return Role(
            key=row.key,
            name=row.name,
            replicas=replicas,
            min_replicas=replicas,
            request=self.request(template_field, template),
            template=template,
            priority_class=text(template["spec"].get("priorityClassName")),
        )

    def replicas(self, field: str, value: Any, row: RoleKind) -> int:
        field = f"{field}.{self.kind.replicas_field}"
        count = 1 if value is None else whole(value)
        if count is None:
            self.problem(field, f"{value!r} is not a whole number")
        elif row.fixed_replicas is not None and count != row.fixed_replicas:
            self.problem(field, f"{count} is not allowed: a job has exactly {row.fixed_replicas} {row.key}")
        elif count < 1:
            self.problem(field, f"{count} is not allowed: use 1 or more, or leave {row.key} out")
        else:
            return count
        return 1

    def check_containers(self, field: str, template: Json) -> None:
        containers = maps(template["spec"].get("containers"))
        main = [container for container in containers if container.get("name") == self.kind.main_container]
        field = f"{field}.spec.containers"
        if len(main) != 1:
            self.problem(
                field,
                f"has {'no' if not main else 'more than one'} container named {self.kind.main_container!r}: "
                "the training container must have that name",
            )
        elif not text(main[0].get("image")):
            self.problem(field, f"has no image for container {self.kind.main_container!r}: name one")

    def check_scheduling(self, field: str, template: Json) -> None:
        """An explicit default-scheduler means the same as none; one name is written to all roles of the member copy."""
        name = text(template["spec"].get("schedulerName"))
        if name not in ("", DEFAULT_SCHEDULER, MUSTER_SCHEDULER):
            self.problem(
                f"{field}.spec.schedulerName",
                f"{name!r} knows nothing of this job's gang: leave it out, the right scheduler is filled in",
            )
        if template["spec"].get("schedulingGroup") is not None:
            self.problem(
                f"{field}.spec.schedulingGroup", "makes a gang of its own (KEP-4671): leave it out, the job is the gang"
            )

    def request(self, field: str, template: Json) -> Resources:
        try:
            requests = template_class(self.namespace, template).requests
            for name in (name for name, units in requests.items() if units > LARGEST_AMOUNT):
                self.problem(field, f"asks for more {name} in one pod than a node can have (2^63 - 1)")
            return {name: min(units, LARGEST_AMOUNT) for name, units in requests.items()}
        except (QuantityError, PodTemplateError) as error:
            self.problem(field, f"cannot make pods: {error}")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # Only what the CRD's schema would have refused gets here: a part of the template of a wrong type.
            self.problem(field, f"cannot make pods: a field has the wrong type ({error})")
        return {}

    # Name

    def check_name(self, roles: list[Role]) -> None:
        field = "metadata.name"
        if not _DNS_1035.fullmatch(self.name):
            self.problem(
                field,
                f"{self.name!r} is not a DNS-1035 label: use lower case letters, digits and '-', "
                "a letter first and no '-' last",
            )
            return
        most = whole(at(self.document, ("spec", "elasticPolicy", "maxReplicas"))) or 0
        last = {role.name: role.replicas if self.is_fixed(role.key) else max(role.replicas, most) for role in roles}
        suffix = max((f"-{name}-{count - 1}" for name, count in last.items()), key=len, default="-worker-0")
        allowed = LABEL_LIMIT - len(suffix)
        if len(self.name) > allowed:
            self.problem(
                field,
                f"{self.name!r} is too long by {len(self.name) - allowed}: pod names end in {suffix!r} and may have "
                f"{LABEL_LIMIT} characters; use at most {allowed}",
            )

    # Policy

    def run_policy(self) -> RunPolicy:
        new = mapping(at(self.document, self.kind.policy_path))
        scheduling = mapping(new.get("schedulingPolicy"))
        clean = self.either("cleanPodPolicy")
        if clean not in (None, "", *CLEAN_POD_POLICIES):
            self.problem(
                f"{'.'.join(self.kind.policy_path)}.cleanPodPolicy",
                f"{clean!r} is not one of {', '.join(CLEAN_POD_POLICIES)}",
            )
        return RunPolicy(
            clean_pod_policy=text(clean) or None,
            ttl_seconds_after_finished=self.seconds("ttlSecondsAfterFinished"),
            active_deadline_seconds=self.seconds("activeDeadlineSeconds"),
            backoff_limit=self.seconds("backoffLimit"),
            suspend=at(self.document, self.kind.suspend_path) is True,
            scheduling=SchedulingPolicy(
                min_available=whole(scheduling.get("minAvailable")),
                queue=text(scheduling.get("queue")),
                priority_class=text(scheduling.get("priorityClass")),
                schedule_timeout_seconds=whole(scheduling.get("scheduleTimeoutSeconds")),
            ),
        )

    def either(self, name: str) -> Any:
        """A policy field from either place; the present place wins, with a warning where they differ."""
        new = at(self.document, (*self.kind.policy_path, name))
        old = at(self.document, (*self.kind.old_policy_path, name))
        if new is not None and old is not None and new != old:
            self.warnings.append(
                f"{'.'.join((*self.kind.old_policy_path, name))} {old} is ignored: "
                f"{'.'.join((*self.kind.policy_path, name))} {new} wins"
            )
        return old if new is None else new

    def seconds(self, name: str) -> int | None:
        """A whole number of 0 or more, absent or null as None."""
        value = self.either(name)
        if value is None:
            return None
        number = whole(value)
        if number is None or number < 0:
            self.problem(f"{'.'.join(self.kind.policy_path)}.{name}", f"{value!r} is not a whole number of 0 or more")
        return number

    # Gang

    def gang_min(self, roles: list[Role], min_available: int | None) -> int:
        """All pods, unless elasticPolicy.minReplicas says less, unless schedulingPolicy.minAvailable says otherwise
        (the order of NVIDIA/KAI-Scheduler's pod grouper; training-operator itself ignores minReplicas, trainer#1515).
        Roles of a fixed number are always needed whole."""
        pods = sum(role.replicas for role in roles)
        if pods > MOST_PODS:
            self.problem(self.roles_field, f"describes {pods} pods: a job has at most {MOST_PODS}")
        fixed = sum(role.replicas for role in roles if self.is_fixed(role.key))
        minimum = pods
        elastic = at(self.document, ("spec", "elasticPolicy"))
        if isinstance(elastic, dict) and pods:
            minimum = self.elastic_min(elastic, roles, pods)
        if min_available is not None:
            field = f"{'.'.join(self.kind.policy_path)}.schedulingPolicy.minAvailable"
            if not 1 <= min_available <= pods and roles:
                self.problem(field, f"{min_available} is not between 1 and the job's {pods} pods")
            minimum = min_available
        return max(minimum, fixed)

    def elastic_min(self, elastic: Json, roles: list[Role], pods: int) -> int:
        worker = next((role for role in roles if not self.is_fixed(role.key)), None)
        field = "spec.elasticPolicy"
        if worker is None:
            self.problem(field, "needs a Worker role: add one, or remove elasticPolicy")
            return pods
        least, most = whole(elastic.get("minReplicas")), whole(elastic.get("maxReplicas"))
        # Min and max default to each other, else to the workers asked for (training-operator SetElasticPolicyDefaults).
        least = least if least is not None else most if most is not None else worker.replicas
        most = most if most is not None else least
        if least < 1 or most < least:
            self.problem(
                f"{field}.minReplicas",
                f"{least} with maxReplicas {most} is not allowed: 1 <= minReplicas <= maxReplicas",
            )
        elif not least <= worker.replicas <= most:
            self.warnings.append(
                f"{field} allows {least} to {most} replicas and Worker.replicas is {worker.replicas}: "
                f"{worker.replicas} are started"
            )
        return min(least, pods)

    def compare_priorities(self, roles: list[Role]) -> None:
        classes = {role.priority_class for role in roles}
        if len(classes) > 1:
            told = ", ".join(f"{role.key} {role.priority_class or '(none)'}" for role in roles)
            self.warnings.append(
                f"roles of one gang have different priority classes ({told}): the highest orders the queue, and in the "
                "member pods of the lower one can be preempted alone"
            )
