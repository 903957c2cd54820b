"""Which dialect a member speaks, by the schema it serves: only training-operator's CRD has spec.runPolicy."""

import msgspec

from hack.operator.job import Dialect
from kube.api.api import Api

_OPENAPI = "/openapi/v3/apis/kubeflow.org/v1"


async def detect(api: Api) -> Dialect:
    """Raises ApiError (NotFound: no PyTorchJob CRD there)."""
    document = msgspec.json.decode(await api.read_path(_OPENAPI))
    for schema in document.get("components", {}).get("schemas", {}).values():
        spec = schema.get("properties", {}).get("spec", {}).get("properties", {})
        if "pytorchReplicaSpecs" in spec:
            return "training-operator" if "runPolicy" in spec else "arena"
    return "arena"
