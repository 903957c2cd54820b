"""A PyTorchJob as an operator reads it: defaulted and checked, policy taken from where its dialect keeps it.

Defaults stay in memory, stored objects are left as written (training-operator pytorch_defaults.go,
pytorch-operator v1/defaults.go).
"""

import copy
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from kube.objects.meta import Json, ObjectMeta

Dialect = Literal["training-operator", "arena"]

MASTER, WORKER = "Master", "Worker"
CONTAINER = "pytorch"
PORT_NAME, PORT = "pytorchjob-port", 23456
OUR_MANAGER = "kubeflow.org/training-operator"

_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


class JobInvalid(ValueError):
    """What the admission webhook of 1.9, or the legacy operator, says no to."""


class JobObject(msgspec.Struct):
    """A PyTorchJob as the watch delivers it."""

    metadata: ObjectMeta
    spec: Json = {}
    status: Json | None = None


class Role(msgspec.Struct, frozen=True):
    type: str
    """Master or Worker."""
    replicas: int
    restart_policy: str
    template: Json
    """With the default port."""

    @property
    def label(self) -> str:
        return self.type.lower()


class TrainingJob(msgspec.Struct, frozen=True, kw_only=True):
    dialect: Dialect
    namespace: str
    name: str
    uid: str
    annotations: dict[str, str]
    roles: dict[str, Role]
    clean_pod_policy: str = "None"
    ttl_seconds: int | None = None
    active_deadline_seconds: int | None = None
    backoff_limit: int | None = None
    suspend: bool = False
    managed_by: str = ""
    scheduling_policy: Json = {}
    elastic: Json | None = None
    nproc_per_node: str | None = None

    @property
    def total(self) -> int:
        return sum(role.replicas for role in self.roles.values())

    @property
    def legacy(self) -> bool:
        return self.dialect == "arena"

    def pod_name(self, role: Role, index: int) -> str:
        return f"{self.name}-{role.label}-{index}"

    @property
    def owner_reference(self) -> Json:
        return {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


def parse_job(job: JobObject, dialect: Dialect) -> TrainingJob:
    """Raises JobInvalid with every complaint."""
    try:
        return _parse(job, dialect)
    except (AttributeError, KeyError, TypeError) as error:
        raise JobInvalid(f"spec: not that of a PyTorchJob: {error!r}") from error


def _parse(job: JobObject, dialect: Dialect) -> TrainingJob:
    spec = job.spec
    policy = spec if dialect == "arena" else (spec.get("runPolicy") or {})
    complaints = [] if dialect == "arena" else _name_complaints(job.metadata.name)
    roles: dict[str, Role] = {}
    for key, written in (spec.get("pytorchReplicaSpecs") or {}).items():
        found, more = _role(key, written or {}, dialect)
        complaints += more
        if found is not None:
            roles[found.type] = found
    if dialect == "arena" and MASTER not in roles:
        complaints.append("spec.pytorchReplicaSpecs: Master is missing")
    if not roles and not complaints:
        complaints.append("spec.pytorchReplicaSpecs: must be given")
    elastic = spec.get("elasticPolicy") if dialect != "arena" else None
    if elastic is not None and WORKER not in roles:
        complaints.append("spec.pytorchReplicaSpecs[Worker]: must be given if elasticPolicy is used")
    if complaints:
        raise JobInvalid("; ".join(complaints))
    return TrainingJob(
        dialect=dialect,
        namespace=job.metadata.namespace,
        name=job.metadata.name,
        uid=job.metadata.uid,
        annotations=dict(job.metadata.annotations or {}),
        roles=roles,
        clean_pod_policy=policy.get("cleanPodPolicy") or "None",
        ttl_seconds=policy.get("ttlSecondsAfterFinished"),
        active_deadline_seconds=policy.get("activeDeadlineSeconds"),
        backoff_limit=policy.get("backoffLimit"),
        suspend=bool(policy.get("suspend")) and dialect != "arena",
        managed_by=(policy.get("managedBy") or "") if dialect != "arena" else "",
        scheduling_policy=(policy.get("schedulingPolicy") or {}) if dialect != "arena" else {},
        elastic=_default_elastic(elastic, roles) if elastic is not None else None,
        nproc_per_node=_nproc_per_node(spec, elastic) if dialect != "arena" else None,
    )


def _name_complaints(name: str) -> list[str]:
    if _DNS_1035.fullmatch(name) and len(name) <= 63:
        return []
    return [f"metadata.name: {name!r} is not a DNS-1035 label of at most 63 characters"]


def _role(key: str, written: Mapping[str, Any], dialect: Dialect) -> tuple[Role | None, list[str]]:
    path = f"spec.pytorchReplicaSpecs[{key}]"
    if key not in (MASTER, WORKER):
        folded = key.capitalize()
        if dialect != "arena" or folded not in (MASTER, WORKER):
            return None, [f"{path}: must be Master or Worker"]
        key = folded
    complaints = []
    replicas = written.get("replicas")
    if key == MASTER:
        # The webhook of 1.9 refuses nil too; the legacy operator takes it for 1.
        if replicas != 1 and not (replicas is None and dialect == "arena"):
            complaints.append(f"{path}.replicas: must be 1")
    elif replicas is not None and replicas < 1:
        complaints.append(f"{path}.replicas: must be at least 1")
    template = copy.deepcopy(dict(written.get("template") or {}))
    containers = (template.get("spec") or {}).get("containers") or []
    complaints += [
        f"{path}.template.spec.containers[{index}].image: must be given"
        for index, container in enumerate(containers)
        if not container.get("image")
    ]
    main = next((container for container in containers if container.get("name") == CONTAINER), None)
    if main is None:
        complaints.append(f"{path}.template.spec.containers: must have one named {CONTAINER}")
    elif not any(port.get("name") == PORT_NAME for port in main.get("ports") or ()):
        main["ports"] = [*(main.get("ports") or ()), {"name": PORT_NAME, "containerPort": PORT}]
    if complaints:
        return None, complaints
    return Role(key, 1 if replicas is None else replicas, written.get("restartPolicy") or "OnFailure", template), []


def _default_elastic(elastic: Mapping[str, Any], roles: Mapping[str, Role]) -> Json:
    """Minimum and maximum copy each other, else the workers asked for."""
    filled = dict(elastic)
    workers = roles[WORKER].replicas
    least, most = filled.get("minReplicas"), filled.get("maxReplicas")
    filled["minReplicas"] = least if least is not None else most if most is not None else workers
    filled["maxReplicas"] = most if most is not None else least if least is not None else workers
    return filled


def _nproc_per_node(spec: Mapping[str, Any], elastic: Mapping[str, Any] | None) -> str | None:
    given: str | None = spec.get("nprocPerNode")
    if given is None and (elastic is None or elastic.get("nProcPerNode") is None):
        return "auto"
    return given
