"""The members that the user means, and a way to each: its kubeconfig out of the Secret on the hub.

The user's own identity reads both; a refusal is reported as the hub words it.
"""

import base64
import binascii
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from urllib.parse import quote

import msgspec

from dispatcher.kubectl_amc.errors import AmcError
from dispatcher.kubectl_amc.reading import ReadApi
from kube.api.api import MEMBER_CLUSTERS, SECRETS
from kube.api.errors import ApiError, NotFound, StatusError
from kube.api.kubeconfig import KubeconfigRefused, MemberCredentials, validate_member_kubeconfig
from kube.objects.names import MUSTER_NAMESPACE

KUBECONFIG_KEY = "kubeconfig"

Connect = Callable[[MemberCredentials], AbstractAsyncContextManager[ReadApi]]


class Member(msgspec.Struct, frozen=True):
    name: str
    secret: str
    """Name of its kubeconfig Secret in muster-system."""


class _Name(msgspec.Struct):
    name: str


class _Spec(msgspec.Struct, rename="camel"):
    kubeconfig_secret: _Name


class _MemberCluster(msgspec.Struct):
    metadata: _Name
    spec: _Spec


class _MemberClusters(msgspec.Struct):
    items: list[_MemberCluster] = []


class _Secret(msgspec.Struct):
    data: dict[str, str] | None = None


def described(error: ApiError) -> str:
    """The error in kubectl's words."""
    if isinstance(error, StatusError):
        return f"Error from server ({error.reason or error.code}): {error.message}"
    return str(error)


async def chosen(hub: ReadApi, names: tuple[str, ...] | None) -> list[Member]:
    """The members of these names, in their order; None: all, by name. Raises AmcError."""
    try:
        if names is None:
            found = msgspec.json.decode(await hub.read_path(MEMBER_CLUSTERS.path()), type=_MemberClusters).items
        else:
            found = [await _named(hub, name) for name in dict.fromkeys(names)]
    except ApiError as error:
        raise AmcError(f"the hub's member clusters cannot be read: {described(error)}") from error
    except msgspec.DecodeError as error:
        raise AmcError(f"the hub's member clusters cannot be read: {error}") from error
    if not found:
        raise AmcError("the hub has no member clusters (kubectl get memberclusters)")
    members = [Member(m.metadata.name, m.spec.kubeconfig_secret.name) for m in found]
    return sorted(members, key=lambda m: m.name) if names is None else members


async def _named(hub: ReadApi, name: str) -> _MemberCluster:
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name):
        raise AmcError(f"{name!r} is no name of a member cluster")
    try:
        document = await hub.read_path(MEMBER_CLUSTERS.path(name=name))
    except NotFound as error:
        raise AmcError(
            f"the hub has no member cluster {name!r}: `kubectl get memberclusters` shows those there are"
        ) from error
    return msgspec.json.decode(document, type=_MemberCluster)


async def credentials(hub: ReadApi, member: Member, *, allow_loopback: bool) -> MemberCredentials:
    """Raises AmcError with no secret in it."""
    where = f"Secret {MUSTER_NAMESPACE}/{member.secret} on the hub"
    try:
        path = SECRETS.path(MUSTER_NAMESPACE, quote(member.secret, safe=""))
        secret = msgspec.json.decode(await hub.read_path(path), type=_Secret)
    except ApiError as error:
        raise AmcError(f"its kubeconfig, {where}, cannot be read: {described(error)}") from error
    except msgspec.DecodeError as error:
        raise AmcError(f"its kubeconfig, {where}, is no Secret") from error
    encoded = (secret.data or {}).get(KUBECONFIG_KEY)
    if encoded is None:
        raise AmcError(f"{where} has no key {KUBECONFIG_KEY!r}")
    try:
        return validate_member_kubeconfig(base64.b64decode(encoded, validate=True), allow_loopback)
    except (KubeconfigRefused, binascii.Error) as error:
        raise AmcError(f"its kubeconfig, {where}, is refused: {error}") from error
