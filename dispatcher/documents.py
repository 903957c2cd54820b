"""Reading and copying untyped JSON documents, where a wrong type counts as absent."""

import copy
import re
from typing import Any

from kube.objects.meta import Json

Path = tuple[str, ...]


def at(document: Any, path: Path) -> Any:
    """The value at `path`; None where any step is absent, null, or not a map."""
    for step in path:
        if not isinstance(document, dict):
            return None
        document = document.get(step)
    return document


def mapping(value: Any) -> Json:
    """The value if it is a map, else an empty one."""
    return value if isinstance(value, dict) else {}


def maps(value: Any) -> list[Json]:
    """The maps among a list's elements."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def texts(value: Any) -> tuple[str, ...]:
    """The strings among a list's elements."""
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def text(value: Any) -> str:
    """The value if it is a string, else ""."""
    return value if isinstance(value, str) else ""


def string_map(value: Any) -> dict[str, str]:
    """Labels or annotations: only pairs of strings."""
    return {k: v for k, v in mapping(value).items() if isinstance(k, str) and isinstance(v, str)}


def whole(value: Any) -> int | None:
    """The value if it is an integer (a bool is none), else None. 3.0 is how some clients write 3."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else None


_DIGITS = re.compile(r"[0-9]{1,18}")


def digits(value: str) -> int | None:
    """The number that a text of plain digits says; None for any other text, and beyond 18 digits, which is more than
    a field of an API object holds and, far beyond, more than `int` reads."""
    return int(value) if _DIGITS.fullmatch(value) else None


def deep_copy(document: Json) -> Json:
    copied: Json = copy.deepcopy(document)
    return copied


_SERVER_SIDE = (
    "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds",
    "managedFields", "selfLink", "ownerReferences", "finalizers", "generateName",
)  # fmt: skip
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def portable(document: Json) -> Json:
    """A deep copy without what only makes sense in the cluster it came from: status, server-side metadata, owner
    references, finalizers, kubectl's last-applied annotation."""
    copied = deep_copy(document)
    copied.pop("status", None)
    metadata = mapping(copied.get("metadata"))
    kept = {k: v for k, v in metadata.items() if k not in _SERVER_SIDE}
    annotations = string_map(kept.get("annotations"))
    annotations.pop(LAST_APPLIED, None)
    kept.pop("annotations", None)
    if annotations:
        kept["annotations"] = annotations
    copied["metadata"] = kept
    return copied
