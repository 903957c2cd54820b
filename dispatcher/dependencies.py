"""Objects that a job's pod templates refer to and that have to exist beside it: ConfigMaps, Secrets,
ServiceAccounts, PersistentVolumeClaims. Also how a copy of one looks in a member.
"""

from collections.abc import Iterable

import msgspec

from kube.objects.meta import Json


class Dependency(msgspec.Struct, frozen=True, order=True):
    """In the job's namespace."""

    kind: str
    """ConfigMap, PersistentVolumeClaim, Secret or ServiceAccount, all core/v1."""
    name: str
    optional: bool = False
    """Every reference to it says `optional: true`: missing on the hub is no reason to wait."""


def dependencies(templates: Iterable[Json]) -> list[Dependency]:
    """Union over pod templates (init, ephemeral and main containers, volumes, projected sources, imagePullSecrets),
    sorted by kind and name. The ServiceAccount "default" is none: every namespace has its own. A generic ephemeral
    volume makes its own claim and is none."""
    raise NotImplementedError


def dependency_copy(document: Json) -> Json:
    """The object as it is to be created in a member: server-side fields, owner references and bindings to the hub's
    own volumes, tokens and secrets stripped. Identity is stamped by `dialects.stamp`."""
    raise NotImplementedError
