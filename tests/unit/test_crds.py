"""The shipped CustomResourceDefinitions against the structs that hub and members exchange, and against the rules that
an API server or a user would otherwise be the first to notice."""

import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from hack.crds.__main__ import GENERATED_FROM
from hack.crds.pytorchjob import LEGACY_SPEC_FIELDS, union
from kube.api.api import (
    BINDINGS,
    CAPACITIES,
    MEMBER_CLUSTERS,
    POD_GROUPS,
    POLICIES,
    PYTORCH_JOBS,
    QUEUE_UNITS,
    QUEUES,
    QUOTA_TREES,
    RESERVATIONS,
    Resource,
)
from kube.objects.binding import AttemptState, ResourceBinding
from kube.objects.capacity import ClusterCapacity
from kube.objects.member_cluster import MemberCluster
from kube.objects.meta import Json, ObjectMeta
from kube.objects.pod_group import PodGroup
from kube.objects.reservation import GangReservation, State, Wished

Schema = dict[str, Any]

FOLDER = Path(__file__).parents[2] / "manifests/crds"
HUB = (PYTORCH_JOBS, POLICIES, QUOTA_TREES, QUEUES, QUEUE_UNITS, BINDINGS, MEMBER_CLUSTERS)
MEMBER = (RESERVATIONS, CAPACITIES, POD_GROUPS)
OURS = [r for r in (*HUB, *MEMBER) if r is not PYTORCH_JOBS]
"""Everything but PyTorchJob, whose schema is other projects'."""
STRUCTS = {
    BINDINGS: ResourceBinding,
    MEMBER_CLUSTERS: MemberCluster,
    RESERVATIONS: GangReservation,
    CAPACITIES: ClusterCapacity,
    POD_GROUPS: PodGroup,
}


def path(resource: Resource) -> Path:
    return FOLDER / ("hub" if resource in HUB else "member") / f"{resource.group}_{resource.plural}.yaml"


_LOADED: dict[Resource, Schema] = {}


def crd(resource: Resource) -> Schema:
    if resource not in _LOADED:
        _LOADED[resource] = yaml.load(path(resource).read_text(), Loader=yaml.CSafeLoader)  # safe, and in C
    return _LOADED[resource]


def version(resource: Resource) -> Schema:
    only: Schema
    (only,) = crd(resource)["spec"]["versions"]
    return only


def root(resource: Resource) -> Schema:
    schema: Schema = version(resource)["schema"]["openAPIV3Schema"]
    return schema


def at(schema: Schema, dotted: str) -> Schema:
    """The schema of a field; `[]` steps into items, `{}` into the values of a map."""
    for step in dotted.split("."):
        name = step.removesuffix("[]").removesuffix("{}")
        schema = schema["properties"][name]
        if step.endswith("[]"):
            schema = schema["items"]
        elif step.endswith("{}"):
            schema = schema["additionalProperties"]
    return schema


def nodes(schema: Schema, where: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema below this one with its path, metadata (the API server's own) left out."""
    yield where, schema
    for name, below in schema.get("properties", {}).items():
        if where or name != "metadata":
            yield from nodes(below, f"{where}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{where}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from nodes(schema["additionalProperties"], f"{where}{{}}")


def by_kind(resource: Resource) -> str:
    return resource.kind


# --- files


def test_every_kind_lies_where_it_is_used_and_nothing_else_does():
    assert {p.relative_to(FOLDER) for p in FOLDER.rglob("*.yaml") if p.name != "kustomization.yaml"} == {
        path(r).relative_to(FOLDER) for r in (*HUB, *MEMBER)
    }


@pytest.mark.parametrize("side", ["hub", "member"])
def test_kustomize_takes_every_file(side: str):
    listed = yaml.safe_load((FOLDER / side / "kustomization.yaml").read_text())["resources"]

    assert listed == sorted(p.name for p in (FOLDER / side).glob("*.yaml") if p.name != "kustomization.yaml")


@pytest.mark.parametrize("resource", [*HUB, *MEMBER], ids=by_kind)
def test_names_version_and_scope_are_those_that_the_programs_ask_for(resource: Resource):
    spec = crd(resource)["spec"]

    assert (spec["group"], spec["names"]["plural"], spec["names"]["kind"]) == (
        resource.group,
        resource.plural,
        resource.kind,
    )
    assert version(resource)["name"] == resource.version
    assert spec["scope"] == ("Namespaced" if resource.namespaced else "Cluster")
    assert crd(resource)["metadata"]["name"] == f"{resource.plural}.{resource.group}"


@pytest.mark.parametrize("resource", [*HUB, *MEMBER], ids=by_kind)
def test_status_is_a_subresource_and_the_kind_is_in_category_muster(resource: Resource):
    assert version(resource)["subresources"]["status"] == {}
    assert crd(resource)["spec"]["names"]["categories"] == ["muster"]


@pytest.mark.parametrize("resource", [*HUB, *MEMBER], ids=by_kind)
def test_groups_of_kubernetes_itself_say_that_the_schema_is_not_approved(resource: Resource):
    # kubernetes/enhancements KEP-2337 (api-approved.kubernetes.io): *.k8s.io needs the annotation, *.x-k8s.io does not.
    approval = crd(resource)["metadata"].get("annotations", {}).get("api-approved.kubernetes.io", "")

    assert approval.startswith("unapproved, ") == resource.group.endswith(".k8s.io")


# --- contract with the structs


def optional(annotation: Any) -> Any:
    """T for `T | None`."""
    if isinstance(annotation, types.UnionType):
        members = [a for a in typing.get_args(annotation) if a is not type(None)]
        if len(members) == 1:
            return members[0]
    return annotation


def mismatches(annotation: Any, schema: Schema, where: str) -> Iterator[str]:
    """What the wire form of a struct field says that the schema does not, and the reverse."""
    annotation = optional(annotation)
    arguments = typing.get_args(annotation)
    if annotation is ObjectMeta:
        return
    if annotation == Json:
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            yield f"{where}: the struct passes any JSON through, the schema prunes it"
    elif isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        yield from struct_mismatches(annotation, schema, where)
    elif typing.get_origin(annotation) is list:
        if schema.get("type") != "array":
            yield f"{where}: a list in the struct, {schema.get('type')} in the schema"
        else:
            yield from mismatches(arguments[0], schema["items"], f"{where}[]")
    elif typing.get_origin(annotation) is dict:
        if "additionalProperties" not in schema:
            yield f"{where}: a map in the struct, not in the schema"
        else:
            yield from mismatches(arguments[1], schema["additionalProperties"], f"{where}{{}}")
    elif isinstance(annotation, types.UnionType):  # a quantity as it may be written: str | int | float
        if not schema.get("x-kubernetes-int-or-string"):
            yield f"{where}: a loose quantity in the struct, not in the schema"
    elif typing.get_origin(annotation) is typing.Literal:
        extra = set(schema.get("enum", ())) ^ set(arguments)
        if extra:
            yield f"{where}: values differ: {sorted(extra)}"
    else:
        expected = {str: "string", int: "integer", bool: "boolean"}[annotation]
        if schema.get("type") != expected:
            yield f"{where}: {expected} in the struct, {schema.get('type')} in the schema"


def struct_mismatches(struct: type[msgspec.Struct], schema: Schema, where: str) -> Iterator[str]:
    fields = {f.encode_name: f for f in msgspec.structs.fields(struct)}
    properties = schema.get("properties", {})
    for name in sorted(fields.keys() - properties.keys()):
        yield f"{where}.{name}: in the struct, not in the schema: the API server would drop it"
    for name in sorted(properties.keys() - fields.keys()):
        yield f"{where}.{name}: in the schema, not in the struct: nobody reads it"
    for name in schema.get("required", ()):
        if name in fields and not fields[name].required and struct.__struct_config__.omit_defaults:
            yield f"{where}.{name}: required by the schema, left out by the struct when it is the default"
    for name in fields.keys() & properties.keys():
        field, property_ = fields[name], properties[name]
        if "default" in property_ and (field.required or property_["default"] != field.default):
            yield f"{where}.{name}: default {property_['default']!r} in the schema, {field.default!r} in the struct"
        yield from mismatches(field.type, property_, f"{where}.{name}")


@pytest.mark.parametrize("resource", list(STRUCTS), ids=by_kind)
def test_struct_and_schema_have_the_same_fields(resource: Resource):
    struct = STRUCTS[resource]
    hints = typing.get_type_hints(struct)
    assert {"spec", "status"} & hints.keys() == {"spec", "status"} & root(resource)["properties"].keys()

    found = [
        text
        for part in ("spec", "status")
        if part in hints
        for text in mismatches(hints[part], root(resource)["properties"][part], part)
    ]

    assert found == []


def test_a_difference_between_struct_and_schema_is_seen():
    class Half(msgspec.Struct):
        here: str
        gone: int = 0

    schema = {"properties": {"here": {"type": "integer"}, "new": {"type": "string"}}}

    assert list(struct_mismatches(Half, schema, "spec")) == [
        "spec.gone: in the struct, not in the schema: the API server would drop it",
        "spec.new: in the schema, not in the struct: nobody reads it",
        "spec.here: string in the struct, integer in the schema",
    ]


def test_states_are_those_of_the_structs():
    assert at(root(RESERVATIONS), "spec.state")["enum"] == list(typing.get_args(Wished))
    assert at(root(RESERVATIONS), "status.state")["enum"] == list(typing.get_args(State))
    assert at(root(BINDINGS), "spec.attempt.state")["enum"] == list(typing.get_args(AttemptState))


# --- what users read


@pytest.mark.parametrize("resource", OURS, ids=by_kind)
def test_every_field_is_described(resource: Resource):
    assert [where for where, schema in nodes(root(resource)) if not schema.get("description", "").strip()] == []


@pytest.mark.parametrize("resource", OURS, ids=by_kind)
def test_descriptions_are_sentences(resource: Resource):
    # kubectl explain shows them as they are.
    assert [where for where, schema in nodes(root(resource)) if not schema["description"].endswith(".")] == []


@pytest.mark.parametrize("resource", [*HUB, *MEMBER], ids=by_kind)
def test_where_columns_are_given_age_is_the_last(resource: Resource):
    # Once any column is given the API server no longer adds Age.
    columns = version(resource).get("additionalPrinterColumns", [])

    assert not columns or (columns[-1]["name"], columns[-1]["type"]) == ("Age", "date")


@pytest.mark.parametrize(
    ("resource", "columns"),
    [
        (PYTORCH_JOBS, ["State", "Age"]),
        (QUEUES, []),  # NAME and AGE, by the API server
        (QUEUE_UNITS, ["Phase", "Priority", "Admissions", "JobType", "Age"]),
        (BINDINGS, ["Cluster", "Phase", "Epoch", "Age"]),
        (MEMBER_CLUSTERS, ["Ready", "Nodes", "Free CPU", "Free Memory", "Free GPU", "Age"]),
        (POD_GROUPS, ["Phase", "MinMember", "Running", "Succeeded", "Failed", "Age"]),
    ],
    ids=lambda value: value.kind if isinstance(value, Resource) else "",
)
def test_columns_of_kubectl_get(resource: Resource, columns: list[str]):
    shown = [c["name"] for c in version(resource).get("additionalPrinterColumns", []) if not c.get("priority")]

    assert shown == columns


# --- what the API server demands


@pytest.mark.parametrize("resource", OURS, ids=by_kind)
def test_everything_is_bounded(resource: Resource):
    # CEL's cost estimate takes an unbounded list, map or string for three megabytes of it.
    unbounded = []
    for where, schema in nodes(root(resource)):
        kind = schema.get("type")
        if where in (".apiVersion", ".kind"):
            continue
        if (
            (kind == "array" and "maxItems" not in schema)
            or ("additionalProperties" in schema and "maxProperties" not in schema)
            or (kind == "string" and not schema.keys() & {"maxLength", "enum", "format"})
        ):
            unbounded.append(where)

    assert unbounded == []


@pytest.mark.parametrize("resource", OURS, ids=by_kind)
def test_every_rule_has_a_message(resource: Resource):
    rules = [rule for _, schema in nodes(root(resource)) for rule in schema.get("x-kubernetes-validations", ())]

    assert [rule["rule"] for rule in rules if not rule.get("message")] == []


@pytest.mark.parametrize("resource", OURS, ids=by_kind)
def test_conditions_are_a_map_keyed_by_type(resource: Resource):
    lists = [s for where, s in nodes(root(resource)) if where.endswith(".conditions")]

    assert all(s["x-kubernetes-list-map-keys"] == ["type"] for s in lists)


def test_a_reservation_is_fixed_but_for_state_renewals_and_claim():
    spec = root(RESERVATIONS)["properties"]["spec"]
    fixed = {
        match[1]
        for rule in spec["x-kubernetes-validations"]
        if (match := re.fullmatch(r"self\.(\w+) == oldSelf\.\1", rule["rule"]))
    }

    assert spec["properties"].keys() - fixed == {"state", "renewals", "claim"}


# --- PyTorchJob


def test_pytorchjob_is_made_from_the_module_that_the_fleet_builds():
    assert GENERATED_FROM in path(PYTORCH_JOBS).read_text()[:400]


def test_pytorchjob_takes_policy_in_both_places():
    spec = at(root(PYTORCH_JOBS), "spec")
    policy = at(spec, "runPolicy")["properties"]

    assert spec["properties"].keys() > LEGACY_SPEC_FIELDS.keys()
    for name, schema in LEGACY_SPEC_FIELDS.items():
        assert (schema["type"], schema.get("format")) == (policy[name]["type"], policy[name].get("format"))
        assert spec["properties"][name] == schema


def test_pytorchjob_status_takes_what_both_operators_write():
    # The legacy operator requires conditions and replicaStatuses, training-operator 1.9 requires nothing.
    status = at(root(PYTORCH_JOBS), "status")

    assert "required" not in status
    assert status["properties"].keys() >= {"conditions", "replicaStatuses", "startTime", "completionTime"}
    assert at(status, "replicaStatuses{}")["properties"].keys() >= {"active", "succeeded", "failed"}
    assert at(status, "conditions[]")["required"] == ["status", "type"]


def test_making_pytorchjob_again_changes_nothing():
    shipped = crd(PYTORCH_JOBS)

    assert union(shipped) == shipped


def test_union_adds_the_legacy_fields_and_keeps_the_rest():
    run_policy = {"type": "object", "properties": {"cleanPodPolicy": {"type": "string"}}}
    upstream: Schema = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "pytorchjobs.kubeflow.org", "annotations": {"controller-gen": "v0"}},
        "spec": {
            "group": "kubeflow.org",
            "names": {"kind": "PyTorchJob", "plural": "pytorchjobs"},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": "v1",
                    "schema": {"openAPIV3Schema": {"properties": {"spec": {"properties": {"runPolicy": run_policy}}}}},
                }
            ],
        },
    }

    merged = union(upstream)

    spec = merged["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert list(spec["properties"]) == [
        "activeDeadlineSeconds",
        "backoffLimit",
        "cleanPodPolicy",
        "runPolicy",
        "ttlSecondsAfterFinished",
    ]
    assert spec["properties"]["runPolicy"] == run_policy
    assert "cleanPodPolicy" not in upstream["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


@pytest.mark.parametrize("resource", [QUEUES, BINDINGS], ids=by_kind)
def test_union_refuses_the_crd_of_another_kind(resource: Resource):
    with pytest.raises(ValueError, match="PyTorchJob"):
        union(crd(resource))
