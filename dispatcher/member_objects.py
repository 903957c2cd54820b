"""What marks an object in a member as ours: hub id, id and epoch (PROTOCOL "Words"). Without them it is not touched."""

import msgspec

from dispatcher.documents import deep_copy, mapping, string_map
from kube.objects.meta import Json
from kube.objects.names import EPOCH, HUB_ID, JOB_ID, MANAGED


class Identity(msgspec.Struct, frozen=True):
    hub_id: str
    job_id: str
    epoch: int


def stamp(document: Json, identity: Identity) -> Json:
    """A deep copy with the identity annotations and the managed label."""
    copied = deep_copy(document)
    metadata = mapping(copied.get("metadata"))
    copied["metadata"] = {
        **metadata,
        "labels": {**string_map(metadata.get("labels")), MANAGED: "true"},
        "annotations": {
            **string_map(metadata.get("annotations")),
            HUB_ID: identity.hub_id,
            JOB_ID: identity.job_id,
            EPOCH: str(identity.epoch),
        },
    }
    return copied


def member_namespace(name: str, hub_id: str) -> Json:
    """Namespace to create in a member. It carries the hub's id but no job's: many jobs share it, and it stays."""
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {MANAGED: "true"}, "annotations": {HUB_ID: hub_id}},
    }
