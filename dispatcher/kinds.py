"""What the dispatcher knows of each kind of job, as one table. PyTorchJob is its only row.

Everything kind-specific that is *data* stands here (paths, role keys, names); rules stand in the modules that use it.
Source of the row: kubeflow/training-operator 1.9 `pkg/apis/kubeflow.org/v1`, kubeflow/pytorch-operator for the older
spec-level policy fields.
"""

import msgspec

from dispatcher.documents import Path
from kube.objects.meta import Json


class RoleKind(msgspec.Struct, frozen=True, kw_only=True):
    """One key of the roles map."""

    key: str
    """As in the document: "Master"."""
    name: str
    """As in bindings, reservations, labels and pod names: "master"."""
    fixed_replicas: int | None = None
    """The only number allowed, where there is one."""
    label: str = ""


class JobKind(msgspec.Struct, frozen=True, kw_only=True):
    api_version: str
    kind: str
    plural: str
    suffix: str
    """Ends the derived binding name, so that two kinds never collide (karmada#2099)."""
    queue_unit_job_type: str
    roles: tuple[RoleKind, ...]
    """In the order results are told: {master 1} {worker 2}."""
    roles_path: Path
    replicas_field: str
    template_field: str
    main_container: str
    policy_path: Path
    """Where the present schema keeps the run policy."""
    old_policy_path: Path
    """Where the older schema keeps the same fields."""
    suspend_path: Path
    managed_by_path: Path
    status_path: Path

    def role(self, key: str) -> RoleKind | None:
        return next((role for role in self.roles if role.key == key), None)


PYTORCHJOB = JobKind(
    api_version="kubeflow.org/v1",
    kind="PyTorchJob",
    plural="pytorchjobs",
    suffix="pytorchjob",
    queue_unit_job_type="PyTorchJob",
    roles=(RoleKind(key="Master", name="master", fixed_replicas=1), RoleKind(key="Worker", name="worker")),
    roles_path=("spec", "pytorchReplicaSpecs"),
    replicas_field="replicas",
    template_field="template",
    main_container="pytorch",
    policy_path=("spec", "runPolicy"),
    old_policy_path=("spec",),
    suspend_path=("spec", "runPolicy", "suspend"),
    managed_by_path=("spec", "runPolicy", "managedBy"),
    status_path=("status",),
)

KINDS: dict[tuple[str, str], JobKind] = {(row.api_version, row.kind): row for row in (PYTORCHJOB,)}


def kind_of(document: Json) -> JobKind | None:
    """The table's row for a document, None for a kind nobody schedules here."""
    return KINDS.get((str(document.get("apiVersion", "")), str(document.get("kind", ""))))
