"""Posting one job into its member: namespace, dependencies, PodGroup, job, in this order, each only if missing."""

import logging
from collections.abc import Sequence

import msgspec

from dispatcher.dependencies import Dependency, dependency_copy
from dispatcher.dialects import member_copy, member_pod_group
from dispatcher.jobs import Job
from dispatcher.member_caches import CopySeen
from dispatcher.member_objects import Identity, member_namespace
from dispatcher.members import Member
from dispatcher.observations import CopyView
from dispatcher.views import copy_view
from kube.api.api import CONFIG_MAPS, NAMESPACES, POD_GROUPS, PYTORCH_JOBS, SECRETS, Api, Resource
from kube.api.errors import AlreadyExists, Conflict, NotFound
from kube.api.writes import create_or_read, read
from kube.objects.meta import Json
from kube.objects.names import HUB_ID, MANAGED

log = logging.getLogger(__name__)

DEPENDENCY_KINDS = {
    "ConfigMap": CONFIG_MAPS,
    "Secret": SECRETS,
    "ServiceAccount": Resource("", "v1", "serviceaccounts", "ServiceAccount"),
    "PersistentVolumeClaim": Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
}


class CannotDispatch(Exception):
    """The job cannot go to this member as things are. The message is for the user."""


class Dispatched(msgspec.Struct, frozen=True):
    copy: CopyView
    """What stands under the job's name in the member now, ours or not."""
    warnings: tuple[str, ...] = ()


async def dispatch(
    hub: Api, member: Member, api: Api, job: Job, identity: Identity, needs: Sequence[Dependency], *, timeout: float
) -> Dispatched:
    """Raises CannotDispatch, dialects.CannotCarry, ApiError. Safe to repeat."""
    if member.cluster.spec.create_namespaces:
        await _namespace(api, job.namespace, identity.hub_id, timeout=timeout)
    for need in needs:
        await _dependency(hub, api, job.namespace, need, identity.hub_id, timeout=timeout)
    try:
        await create_or_read(api, POD_GROUPS, member_pod_group(job, identity), timeout=timeout)
    except NotFound as error:
        if error.reason == "NotFound":
            raise CannotDispatch(f"{member.name} has no namespace {job.namespace}") from error
        log.info("member %s has no PodGroup kind: the reservation alone describes the gang", member.name)
    copy = member_copy(job, member.dialect, member.capacity.scheduler_name, identity)
    there, _ = await create_or_read(api, PYTORCH_JOBS, copy.document, timeout=timeout)
    seen = msgspec.convert(there, type=CopySeen)
    return Dispatched(copy_view(seen.metadata, seen.status, identity.hub_id), copy.warnings)


async def _namespace(api: Api, name: str, hub_id: str, *, timeout: float) -> None:
    if await read(api, NAMESPACES, dict, name, timeout=timeout) is None:
        await create_or_read(api, NAMESPACES, member_namespace(name, hub_id), timeout=timeout)


async def _dependency(hub: Api, member: Api, namespace: str, need: Dependency, hub_id: str, *, timeout: float) -> None:
    """Made if missing there; brought up to date if it is ours; left alone if it is somebody else's."""
    resource = DEPENDENCY_KINDS[need.kind]
    there: Json | None = await read(member, resource, dict, need.name, namespace, timeout=timeout)
    if there is not None and (there["metadata"].get("annotations") or {}).get(HUB_ID) != hub_id:
        return
    source: Json | None = await read(hub, resource, dict, need.name, namespace, timeout=timeout)
    if source is None:
        if there is None and not need.optional:
            raise CannotDispatch(
                f"{need.kind} {namespace}/{need.name}, which the job's pods refer to, is neither on the hub nor in the "
                "member: create it on the hub, or correct the job"
            )
        return
    source |= {"apiVersion": resource.api_version, "kind": resource.kind}
    try:
        wanted = _shared(dependency_copy(source), hub_id)
    except ValueError as error:
        raise CannotDispatch(str(error)) from error
    body = msgspec.json.encode(wanted)
    if there is None:
        try:
            await member.create(resource, body, namespace, timeout=timeout)
        except AlreadyExists:
            return
    elif need.kind in ("ConfigMap", "Secret") and _differs(wanted, there):
        wanted["metadata"]["resourceVersion"] = there["metadata"]["resourceVersion"]
        try:
            await member.replace(resource, need.name, msgspec.json.encode(wanted), namespace, timeout=timeout)
        except (Conflict, NotFound):
            return  # somebody else has just changed it; the next dispatch that needs it looks again


def _shared(document: Json, hub_id: str) -> Json:
    """With our hub id but no job's, like a namespace: several jobs may need it."""
    metadata = document["metadata"]
    metadata["labels"] = {**(metadata.get("labels") or {}), MANAGED: "true"}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), HUB_ID: hub_id}
    return document


def _differs(wanted: Json, there: Json) -> bool:
    return any(wanted.get(field) != there.get(field) for field in ("data", "binaryData", "immutable"))
