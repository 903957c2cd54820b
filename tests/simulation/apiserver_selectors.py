"""Label and field selectors as an API server parses them (apimachinery pkg/labels, pkg/fields)."""

import re
from collections.abc import Callable

from tests.simulation.apiserver_store import Doc, Kind

_SET = re.compile(r"^\s*([^\s!=,()]+)\s+(in|notin)\s+\(([^()]*)\)\s*$")
_EQUALS = re.compile(r"^\s*([^\s!=,()]+)\s*(==|=|!=)\s*([^\s!=,()]*)\s*$")
_EXISTS = re.compile(r"^\s*(!?)\s*([^\s!=,()]+)\s*$")

FIELDS: dict[Kind, tuple[str, ...]] = {
    ("", "pods"): (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.phase",
        "status.nominatedNodeName",
    ),
    ("", "nodes"): ("spec.unschedulable",),
    ("", "secrets"): ("type",),
    ("", "namespaces"): ("status.phase",),
    ("", "events"): (
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
}
"""Besides metadata.name and metadata.namespace (registry strategies, GetAttrs)."""

Matcher = Callable[[Doc], bool]


class BadSelector(ValueError):
    """400."""


def label_matcher(selector: str) -> Matcher:
    parts = [part for part in re.split(r",(?![^()]*\))", selector) if part.strip()]
    tests = [_label_test(part) for part in parts]

    def matches(doc: Doc) -> bool:
        labels = doc["metadata"].get("labels") or {}
        return all(test(labels) for test in tests)

    return matches


def _label_test(part: str) -> Callable[[dict[str, str]], bool]:
    if found := _SET.match(part):
        key, operator, listed = found.groups()
        values = {value.strip() for value in listed.split(",")}
        if operator == "in":
            return lambda labels: key in labels and labels[key] in values
        return lambda labels: key not in labels or labels[key] not in values
    if found := _EQUALS.match(part):
        key, operator, value = found.groups()
        if operator == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if found := _EXISTS.match(part):
        absent, key = found.groups()
        return lambda labels: (key in labels) != bool(absent)
    raise BadSelector(f"unable to parse requirement: {part!r}")


def field_matcher(selector: str, kind: Kind) -> Matcher:
    tests: list[tuple[str, str, bool]] = []
    for part in selector.split(","):
        if not part.strip():
            continue
        found = _EQUALS.match(part)
        if found is None:
            raise BadSelector(f"invalid selector: {selector!r}; can't understand {part!r}")
        path, operator, value = found.groups()
        if path not in ("metadata.name", "metadata.namespace", *FIELDS.get(kind, ())):
            raise BadSelector(f"field label not supported: {path}")
        tests.append((path, value, operator != "!="))
    return lambda doc: all((_field(doc, path) == value) == wanted for path, value, wanted in tests)


def _field(doc: Doc, path: str) -> str:
    value: object = doc
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    if value is None:
        return "false" if path == "spec.unschedulable" else ""
    return str(value).lower() if isinstance(value, bool) else str(value)
