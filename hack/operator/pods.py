"""The pods and Services of a job, as pkg/controller.v1 of training-operator and of pytorch-operator make them.

Both label families are set in both dialects: jobs in the wild read either through fieldRef.
"""

import copy
from typing import Any

import msgspec

from hack.operator.job import CONTAINER, MASTER, PORT, PORT_NAME, WORKER, Role, TrainingJob
from kube.objects.meta import Json
from kube.objects.names import POD_GROUP

PREFIX = "training.kubeflow.org/"
OPERATOR_NAME = "pytorchjob-controller"
LEGACY_OPERATOR_NAME = "pytorch-operator"
VOLCANO_GROUP = "scheduling.k8s.io/group-name"

INIT_IMAGE = "alpine:3.10"
_WAIT_FOR_MASTER = (
    "err=1;for i in $(seq 100); do if nslookup {master}; then err=0 && break; fi;"
    "echo waiting for master; sleep 2; done; exit $err"
)


class Gang(msgspec.Struct, frozen=True):
    """The operator's gang flag: pods get the group's label, and this scheduler where they name none."""

    scheduler_name: str


def pod(job: TrainingJob, role: Role, index: int, gang: Gang | None = None) -> Json:
    """The Pod of one replica, ready to be created."""
    template = _without_nulls(copy.deepcopy(role.template))
    metadata = template.get("metadata") or {}
    spec = template.get("spec") or {}
    labels = {**(metadata.get("labels") or {}), **replica_labels(job, role, index)}
    if is_master_role(job, role, index):
        labels |= {f"{PREFIX}job-role": "master", "job-role": "master"}
    annotations = dict(metadata.get("annotations") or {})
    for container in spec.get("containers") or ():
        container["env"] = [*(container.get("env") or ()), *_environment(job, role, index)]
    if role.type == WORKER and MASTER in job.roles:
        spec["initContainers"] = [*(spec.get("initContainers") or ()), _init_container(job)]
    # A policy written into the template is overwritten by the replica's.
    spec["restartPolicy"] = "Never" if role.restart_policy == "ExitCode" else role.restart_policy
    if gang is not None:
        if job.legacy:
            annotations[VOLCANO_GROUP] = job.name
            if not _foreign_scheduler(job, gang):
                spec["schedulerName"] = gang.scheduler_name
        else:
            labels[POD_GROUP] = job.name
            spec["schedulerName"] = spec.get("schedulerName") or gang.scheduler_name
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": job.pod_name(role, index),
            "namespace": job.namespace,
            "labels": labels,
            "annotations": annotations,
            "finalizers": list(metadata.get("finalizers") or ()),
            "ownerReferences": [job.owner_reference],
        },
        "spec": spec,
    }


def service(job: TrainingJob, role: Role, index: int) -> Json | None:
    """The headless Service of one replica; the legacy operator makes one for the master alone."""
    if job.legacy and role.type != MASTER:
        return None
    labels = replica_labels(job, role, index)
    main = next(container for container in role.template["spec"]["containers"] if container["name"] == CONTAINER)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": job.pod_name(role, index),
            "namespace": job.namespace,
            "labels": labels,
            "ownerReferences": [job.owner_reference],
        },
        "spec": {
            "clusterIP": "None",
            "selector": labels,
            "ports": [_service_port(port) for port in main["ports"]],
        },
    }


def _service_port(port: Json) -> Json:
    named = {"name": port["name"]} if port.get("name") else {}
    return {**named, "port": port["containerPort"]}


def job_labels(job: TrainingJob) -> dict[str, str]:
    return {
        f"{PREFIX}operator-name": OPERATOR_NAME,
        f"{PREFIX}job-name": job.name,
        "group-name": "kubeflow.org",
        "controller-name": LEGACY_OPERATOR_NAME,
        "job-name": job.name,
        "pytorch-job-name": job.name,
    }


def replica_labels(job: TrainingJob, role: Role, index: int) -> dict[str, str]:
    return {
        **job_labels(job),
        f"{PREFIX}replica-type": role.label,
        f"{PREFIX}replica-index": str(index),
        "pytorch-replica-type": role.label,
        "pytorch-replica-index": str(index),
    }


def is_master_role(job: TrainingJob, role: Role, index: int) -> bool:
    """Without a Master the first worker plays it."""
    return role.type == MASTER if MASTER in job.roles else index == 0


def _environment(job: TrainingJob, role: Role, index: int) -> list[Json]:
    rank = index if role.type == MASTER else index + 1
    if job.legacy:
        address = "localhost" if role.type == MASTER else _master_name(job)
        return _env(
            MASTER_PORT=_port(job.roles[MASTER]),
            MASTER_ADDR=address,
            WORLD_SIZE=job.total,
            RANK=rank,
            PYTHONUNBUFFERED=0,
        )
    env = _env(PYTHONUNBUFFERED=1)
    if MASTER in job.roles:
        port, address = _port(job.roles[MASTER]), _master_name(job)
        env += _env(MASTER_PORT=port, PET_MASTER_PORT=port, MASTER_ADDR=address, PET_MASTER_ADDR=address)
        env += _env(WORLD_SIZE=job.total * _processes(job), RANK=rank, PET_NODE_RANK=rank)
    if job.nproc_per_node is not None:
        env += _env(PET_NPROC_PER_NODE=job.nproc_per_node)
    return env + (_env(PET_NNODES=job.total) if job.elastic is None else _elastic_environment(job, job.elastic))


def _elastic_environment(job: TrainingJob, elastic: Json) -> list[Json]:
    host = elastic.get("rdzvHost") or f"{job.name}-worker-0"
    port = elastic.get("rdzvPort") or _port(job.roles[WORKER])
    env = _env(
        PET_RDZV_ENDPOINT=f"{host}:{port}",
        PET_RDZV_BACKEND=elastic.get("rdzvBackend") or "c10d",
        PET_NNODES=f"{elastic['minReplicas']}:{elastic['maxReplicas']}",
    )
    for name, field in (
        ("PET_MAX_RESTARTS", "maxRestarts"),
        ("PET_NPROC_PER_NODE", "nProcPerNode"),
        ("PET_RDZV_ID", "rdzvId"),
    ):
        if elastic.get(field) is not None:
            env += _env(**{name: elastic[field]})
    if elastic.get("rdzvConf"):
        env += _env(PET_RDZV_CONF=",".join(f"{conf['key']}={conf['value']}" for conf in elastic["rdzvConf"]))
    if elastic.get("standalone"):
        env += _env(PET_STANDALONE="")
    return env


def _env(**values: Any) -> list[Json]:
    return [{"name": name, "value": str(value)} for name, value in values.items()]


def _master_name(job: TrainingJob) -> str:
    return job.pod_name(job.roles[MASTER], 0)


def _port(role: Role) -> int:
    for container in role.template["spec"]["containers"]:
        if container["name"] == CONTAINER:
            for port in container["ports"]:
                if port.get("name") == PORT_NAME:
                    return int(port["containerPort"])
    return PORT


def _processes(job: TrainingJob) -> int:
    """The number in nprocPerNode; "auto", "cpu" and "gpu" count as one."""
    text = job.nproc_per_node or ""
    return int(text) if text.isascii() and text.isdigit() else 1


def _init_container(job: TrainingJob) -> Json:
    return {
        "name": "init-pytorch",
        "image": INIT_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "resources": {
            "limits": {"cpu": "100m", "memory": "20Mi"},
            "requests": {"cpu": "50m", "memory": "10Mi"},
        },
        "command": ["sh", "-c", _WAIT_FOR_MASTER.format(master=_master_name(job))],
    }


def _foreign_scheduler(job: TrainingJob, gang: Gang) -> bool:
    names = [role.template["spec"].get("schedulerName") or "" for role in job.roles.values()]
    return any(name not in ("", gang.scheduler_name) for name in names)


def _without_nulls(value: Any) -> Any:
    """A null is an absent field, as in a typed custom resource; read by Go, a null quantity would become a zero."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
