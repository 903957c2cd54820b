"""Objects that a job's pod templates refer to and that have to exist beside it: ConfigMaps, Secrets,
ServiceAccounts, PersistentVolumeClaims. Also how a copy of one looks in a member.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from dispatcher.documents import at, mapping, maps, portable, string_map, text
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
    found: dict[tuple[str, str], bool] = {}
    for template in templates:
        for reference in _references(mapping(template.get("spec"))):
            key = (reference.kind, reference.name)
            found[key] = found.get(key, True) and reference.optional
    return sorted(Dependency(kind, name, optional) for (kind, name), optional in found.items())


def _references(spec: Json) -> Iterator[Dependency]:
    for kind, name, optional in _raw_references(spec):
        if name:
            yield Dependency(kind, name, optional is True)


def _raw_references(spec: Json) -> Iterator[tuple[str, str, Any]]:
    account = text(spec.get("serviceAccountName")) or text(spec.get("serviceAccount"))
    if account != "default":
        yield "ServiceAccount", account, False
    for secret in maps(spec.get("imagePullSecrets")):
        # The kubelet goes on without a pull secret that is not there (core/v1 PodSpec.imagePullSecrets).
        yield "Secret", text(secret.get("name")), True
    for field in ("initContainers", "containers"):
        for container in maps(spec.get(field)):
            yield from _of_container(container)
    for volume in maps(spec.get("volumes")):
        yield from _of_volume(volume)


def _of_container(container: Json) -> Iterator[tuple[str, str, Any]]:
    for source in maps(container.get("envFrom")):
        yield from _named(source, "configMapRef", "ConfigMap")
        yield from _named(source, "secretRef", "Secret")
    for variable in maps(container.get("env")):
        source = mapping(variable.get("valueFrom"))
        yield from _named(source, "configMapKeyRef", "ConfigMap")
        yield from _named(source, "secretKeyRef", "Secret")


def _of_volume(volume: Json) -> Iterator[tuple[str, str, Any]]:
    yield from _named(volume, "configMap", "ConfigMap")
    yield from _named(volume, "secret", "Secret", "secretName")
    yield from _named(volume, "persistentVolumeClaim", "PersistentVolumeClaim", "claimName")
    yield from _named(volume, "azureFile", "Secret", "secretName")
    for source in maps(at(volume, ("projected", "sources"))):
        yield from _named(source, "configMap", "ConfigMap")
        yield from _named(source, "secret", "Secret")
    yield from _named(mapping(volume.get("csi")), "nodePublishSecretRef", "Secret")
    for plugin in ("cephfs", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos"):
        yield from _named(mapping(volume.get(plugin)), "secretRef", "Secret")


def _named(holder: Json, field: str, kind: str, name_field: str = "name") -> Iterator[tuple[str, str, Any]]:
    reference = mapping(holder.get(field))
    yield kind, text(reference.get(name_field)), reference.get("optional")


def dependency_copy(document: Json) -> Json:
    """The object as it is to be created in a member: server-side fields, owner references and bindings to the hub's
    own volumes, tokens and secrets stripped. Identity is stamped by `dialects.stamp`.

    Raises ValueError for a Secret that means nothing in another cluster (a ServiceAccount's token)."""
    copied = portable(document)
    kind = copied.get("kind")
    if kind == "Secret" and copied.get("type") == "kubernetes.io/service-account-token":
        name = text(at(copied, ("metadata", "name")))
        raise ValueError(
            f"Secret {name!r} is a ServiceAccount token of the hub and is of no use in a member: "
            "refer to a projected serviceAccountToken volume instead"
        )
    if kind == "ServiceAccount":
        copied.pop("secrets", None)
    if kind == "PersistentVolumeClaim":
        spec = mapping(copied.get("spec"))
        spec.pop("volumeName", None)
        annotations = string_map(at(copied, ("metadata", "annotations")))
        kept = {k: v for k, v in annotations.items() if not _of_volume_controller(k)}
        copied["metadata"].pop("annotations", None)
        if kept:
            copied["metadata"]["annotations"] = kept
    return copied


def _of_volume_controller(annotation: str) -> bool:
    return annotation.startswith(("pv.kubernetes.io/", "volume.kubernetes.io/", "volume.beta.kubernetes.io/"))
