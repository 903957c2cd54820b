"""Objects as JSON, YAML and names, as kubectl prints them. Pure."""

import json
from collections.abc import Sequence
from typing import Any

import yaml

from dispatcher.kubectl_amc.discovery import Kind
from kube.objects.meta import Json

CLUSTER = "muster.dev/cluster"
"""Annotation on printed objects when several members were asked: which one has it. Not in the member's object."""


class _Dumper(yaml.SafeDumper):
    """Multi-line strings as blocks, equal objects in full instead of by anchor: like kubectl."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


_STRING = "tag:yaml.org,2002:str"


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    """Quoted with " where it would otherwise be read as a number, a time or true."""
    style = "|" if "\n" in value else None
    if style is None and dumper.resolve(yaml.ScalarNode, value, (True, False)) != _STRING:  # type: ignore[no-untyped-call]
        style = '"'
    return dumper.represent_scalar(_STRING, value, style=style)


_Dumper.add_representer(str, _text)


def shown(document: Json, *, cluster: str = "", managed_fields: bool = False) -> Json:
    """The object as it is printed: without managedFields unless asked for, with `cluster` as annotation if given."""
    metadata = dict(document.get("metadata") or {})
    if not managed_fields:
        metadata.pop("managedFields", None)
    if cluster:
        metadata["annotations"] = {**(metadata.get("annotations") or {}), CLUSTER: cluster}
    return {**document, "metadata": metadata}


def items(document: Json) -> list[Json]:
    """Objects of a List, each with the apiVersion and kind that the server leaves out of items."""
    kind = str(document.get("kind", "")).removesuffix("List")
    return [{"apiVersion": document.get("apiVersion"), "kind": kind, **item} for item in document.get("items") or ()]


def joined(objects: Sequence[Json], *, single: bool) -> Json:
    """A single object by itself; otherwise all in one List."""
    if single and len(objects) == 1:
        return objects[0]
    return {"apiVersion": "v1", "items": list(objects), "kind": "List", "metadata": {"resourceVersion": ""}}


def as_json(document: Json) -> str:
    return json.dumps(document, indent=4, sort_keys=True, ensure_ascii=False) + "\n"


def as_yaml(document: Json) -> str:
    return yaml.dump(
        document, Dumper=_Dumper, sort_keys=True, allow_unicode=True, default_flow_style=False, width=10**6
    )


def as_name(kind: Kind, name: str) -> str:
    """`pytorchjob.kubeflow.org/pytorch-test`."""
    return f"{kind.qualified}/{name}\n"
