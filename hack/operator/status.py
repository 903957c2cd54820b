"""A job's status: conditions in the operators' words and order, counts per replica type.

training-operator pkg/util/status.go and pytorch-operator's twin: setting a condition moves it to the end, Running and
Restarting replace each other, an end sets Running False, and after Failed nothing changes any more.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from hack.operator.job import Role, TrainingJob
from hack.operator.pods import OPERATOR_NAME, PREFIX
from kube.objects.meta import Json, ObjectMeta

CREATED, RUNNING, RESTARTING, SUSPENDED = "Created", "Running", "Restarting", "Suspended"
SUCCEEDED, FAILED = "Succeeded", "Failed"


class Terminated(msgspec.Struct, rename="camel"):
    exit_code: int = 0


class ContainerState(msgspec.Struct):
    terminated: Terminated | None = None


class ContainerStatus(msgspec.Struct, rename="camel"):
    name: str = ""
    restart_count: int = 0
    state: ContainerState | None = None


class ReplicaPodStatus(msgspec.Struct, rename="camel"):
    phase: str = ""
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class ReplicaPod(msgspec.Struct):
    """A pod as an operator reads it."""

    metadata: ObjectMeta
    status: ReplicaPodStatus = msgspec.field(default_factory=ReplicaPodStatus)

    @property
    def role(self) -> str:
        return self.metadata.label(f"{PREFIX}replica-type")

    @property
    def index(self) -> int:
        text = self.metadata.label(f"{PREFIX}replica-index")
        return int(text) if text.isdigit() else -1

    @property
    def phase(self) -> str:
        return self.status.phase

    @property
    def terminating(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def restarts(self) -> int:
        """Of all its containers together."""
        statuses = [*(self.status.container_statuses or ()), *(self.status.init_container_statuses or ())]
        return sum(status.restart_count for status in statuses)

    def exit_code(self, container: str) -> int:
        """0xbeef, which restarts, where none is known."""
        for status in self.status.container_statuses or ():
            if status.name == container and status.state is not None and status.state.terminated is not None:
                return status.state.terminated.exit_code
        return 0xBEEF


def timestamp(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def is_true(status: Mapping[str, Any], type_: str) -> bool:
    return any(each["type"] == type_ and each["status"] == "True" for each in status.get("conditions") or ())


def is_finished(status: Mapping[str, Any]) -> bool:
    return is_true(status, SUCCEEDED) or is_true(status, FAILED)


def set_condition(status: Json, type_: str, value: bool, reason: str, message: str, now: datetime) -> None:
    """reason: the word after "PyTorchJob"."""
    if is_true(status, FAILED):
        return
    written = {"type": type_, "status": "True" if value else "False", "reason": f"PyTorchJob{reason}"}
    there = next((each for each in status.get("conditions") or () if each["type"] == type_), None)
    if there is not None and (there["status"], there["reason"]) == (written["status"], written["reason"]):
        return
    changed = timestamp(now)
    if there is not None and there["status"] == written["status"]:
        changed = there["lastTransitionTime"]
    kept: list[Json] = []
    for each in status.get("conditions") or ():
        if each["type"] == type_ or {each["type"], type_} == {RUNNING, RESTARTING}:
            continue
        if type_ in (FAILED, SUCCEEDED) and each["type"] == RUNNING:
            each = {**each, "status": "False"}  # noqa: PLW2901
        kept.append(each)
    status["conditions"] = [
        *kept,
        {**written, "message": message, "lastUpdateTime": timestamp(now), "lastTransitionTime": changed},
    ]


def counts(job: TrainingJob, role: Role, pods: Iterable[ReplicaPod]) -> Json:
    """An entry of replicaStatuses: pending pods are counted nowhere, a running one that is ending counts as failed."""
    active = succeeded = failed = 0
    for pod in pods:
        match pod.phase:
            case "Running" if not pod.terminating:
                active += 1
            case "Succeeded":
                succeeded += 1
            case "Running" | "Failed":
                failed += 1
    found = {"active": active, "succeeded": succeeded, "failed": failed}
    result: Json = {name: count for name, count in found.items() if count}
    if not job.legacy:
        labels = {
            f"{PREFIX}job-name": job.name,
            f"{PREFIX}operator-name": OPERATOR_NAME,
            f"{PREFIX}replica-type": role.label,
        }
        result["selector"] = ",".join(f"{key}={value}" for key, value in labels.items())
    return result
