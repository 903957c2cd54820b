"""The hub's PyTorchJob: the union of two dialects of kubeflow.org/v1.

training-operator 1.9 keeps a job's policy in `spec.runPolicy`; the legacy operator that Arena installs
(kubeflow/pytorch-operator) has the same fields right under `spec`. kubectl validates strictly (KEP-2885), so a hub
that knows one dialect only refuses jobs written in the other. Everything else of the legacy schema, status included,
is a subset of the newer one.

Nothing is validated beyond what training-operator's own schema does: the dispatcher checks jobs (roles, replicas,
names) and says what is wrong in the job's conditions, where a job restored from elsewhere or made before an upgrade
is told the same.
"""

from typing import Any

Schema = dict[str, Any]

_REPLACED = " spec.runPolicy has the same field, and wins if both are given."

LEGACY_SPEC_FIELDS: dict[str, Schema] = {
    "activeDeadlineSeconds": {
        "description": "How long the job may be active, in seconds from its start." + _REPLACED,
        "format": "int64",
        "type": "integer",
    },
    "backoffLimit": {
        "description": "How many restarts the job may have before it is failed." + _REPLACED,
        "format": "int32",
        "type": "integer",
    },
    "cleanPodPolicy": {
        "description": "Which pods are deleted when the job ends: None, Running or All. Default None." + _REPLACED,
        "type": "string",
    },
    "ttlSecondsAfterFinished": {
        "description": "How long the job is kept after its end, in seconds. Default: for ever." + _REPLACED,
        "format": "int32",
        "type": "integer",
    },
}
"""Policy fields of the legacy dialect, at spec level (kubeflow/pytorch-operator pkg/apis/pytorch/v1/types.go)."""


def union(upstream: Schema) -> Schema:
    """The CRD of training-operator with the legacy dialect's fields added. `upstream` is not changed.

    Raises ValueError if `upstream` is not the PyTorchJob CRD in the one version v1. Applied to its own result it
    changes nothing.
    """
    try:
        (version,) = upstream["spec"]["versions"]
        root = version["schema"]["openAPIV3Schema"]
        spec = root["properties"]["spec"]
        names = upstream["spec"]["names"]
        matches = (upstream["spec"]["group"], names["kind"], version["name"]) == ("kubeflow.org", "PyTorchJob", "v1")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a CustomResourceDefinition of PyTorchJob with one version: {error!r}") from error
    if not matches or "runPolicy" not in spec["properties"]:
        raise ValueError("not the CustomResourceDefinition of PyTorchJob kubeflow.org/v1 with spec.runPolicy")
    merged_spec = {**spec, "properties": dict(sorted({**spec["properties"], **LEGACY_SPEC_FIELDS}.items()))}
    merged_root = {**root, "properties": {**root["properties"], "spec": merged_spec}}
    merged_version = {**version, "schema": {"openAPIV3Schema": merged_root}}
    return {
        "apiVersion": upstream["apiVersion"],
        "kind": upstream["kind"],
        "metadata": {"name": upstream["metadata"]["name"], "labels": {"app.kubernetes.io/part-of": "muster"}},
        "spec": {**upstream["spec"], "names": {**names, "categories": ["muster"]}, "versions": [merged_version]},
    }
