"""Which resource a user means by TYPE: pods, pod, po, deployments.apps, PyTorchJob, pytorchjobs.v1.kubeflow.org.

Asked of each member itself, since members may differ. Rules: client-go restmapper (shortcut.go, discovery.go) and
cli-runtime resource/builder.go; aggregated discovery is KEP-3352.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from dispatcher.kubectl_amc.errors import AmcError
from dispatcher.kubectl_amc.reading import ReadApi
from kube.api.api import Resource

AGGREGATED = ",".join(
    [
        *(f"application/json;g=apidiscovery.k8s.io;v={v};as=APIGroupDiscoveryList" for v in ("v2", "v2beta1")),
        "application/json",
    ]
)
"""Accept header: the whole discovery in one answer (Kubernetes 1.26 and later), else the list of groups."""


class UnknownType(AmcError):
    """The server has no such resource."""

    def __init__(self, text: str) -> None:
        super().__init__(f'the server doesn\'t have a resource type "{text}"')


class Kind(msgspec.Struct, frozen=True):
    """A resource as a server offers it."""

    resource: Resource
    singular: str = ""
    short_names: tuple[str, ...] = ()

    @property
    def qualified(self) -> str:
        """`pytorchjob.kubeflow.org`, as in `-o name`."""
        singular = self.singular or self.resource.kind.lower()
        return f"{singular}.{self.resource.group}" if self.resource.group else singular

    @property
    def qualified_plural(self) -> str:
        """`pytorchjobs.kubeflow.org`, as in the server's own messages."""
        return f"{self.resource.plural}.{self.resource.group}" if self.resource.group else self.resource.plural


async def discover(api: ReadApi) -> list[Kind]:
    """Every resource that can be read, preferred groups and versions first. Raises ApiError."""
    kinds: list[Kind] = []
    for root in ("/api", "/apis"):
        document = msgspec.json.decode(await api.read_path(root, accept=AGGREGATED))
        if document.get("kind") == "APIGroupDiscoveryList":
            kinds += aggregated(document)
            continue
        for path in version_paths(document):
            kinds += listed(msgspec.json.decode(await api.read_path(path)))
    return kinds


def aggregated(document: dict[str, Any]) -> Iterator[Kind]:
    """APIGroupDiscoveryList (apidiscovery.k8s.io)."""
    for group in document.get("items") or ():
        name = group.get("metadata", {}).get("name", "")
        for version in group.get("versions") or ():
            for found in version.get("resources") or ():
                if "get" in (found.get("verbs") or ()):
                    answer = found.get("responseKind") or {}
                    yield Kind(
                        Resource(
                            name,
                            version["version"],
                            found["resource"],
                            answer.get("kind", ""),
                            found.get("scope") == "Namespaced",
                        ),
                        found.get("singularResource", ""),
                        tuple(found.get("shortNames") or ()),
                    )


def version_paths(document: dict[str, Any]) -> Iterator[str]:
    """Paths of the group versions in an APIVersions or APIGroupList, the preferred version of a group first."""
    for version in document.get("versions") or ():
        yield f"/api/{version}"
    for group in document.get("groups") or ():
        preferred = group.get("preferredVersion") or {}
        versions = [v["groupVersion"] for v in group.get("versions") or ()]
        for version in sorted(versions, key=lambda v: v != preferred.get("groupVersion")):
            yield f"/apis/{version}"


def listed(document: dict[str, Any]) -> Iterator[Kind]:
    """APIResourceList of one group version."""
    group, _, version = document.get("groupVersion", "").rpartition("/")
    for found in document.get("resources") or ():
        if "/" not in found["name"] and "get" in (found.get("verbs") or ()):
            yield Kind(
                Resource(
                    found.get("group") or group,
                    found.get("version") or version,
                    found["name"],
                    found["kind"],
                    bool(found.get("namespaced")),
                ),
                found.get("singularName", ""),
                tuple(found.get("shortNames") or ()),
            )


def resolve(kinds: Iterable[Kind], text: str) -> Kind:
    """The kind that TYPE means: plural or singular name first, then short name, then kind. Raises UnknownType."""
    name, _, qualifier = text.lower().partition(".")
    offered = [kind for kind in kinds if _qualifies(kind.resource, qualifier)]
    for names in (_resource_names, _short_names, _kind_names):
        for kind in offered:
            if name in names(kind):
                return kind
    raise UnknownType(text)


def _qualifies(resource: Resource, qualifier: str) -> bool:
    """`kubeflow.org`, `v1.kubeflow.org`, or the beginning of a group: `scheduling`."""
    if not qualifier:
        return True
    version, _, group = qualifier.partition(".")
    return bool(resource.group.startswith(qualifier)) or (
        version == resource.version and bool(resource.group.startswith(group))
    )


def _resource_names(kind: Kind) -> tuple[str, ...]:
    return (kind.resource.plural, kind.singular)


def _short_names(kind: Kind) -> tuple[str, ...]:
    return kind.short_names


def _kind_names(kind: Kind) -> tuple[str, ...]:
    return (kind.resource.kind.lower(),)
