"""The two patches muster sends: JSON merge patch (RFC 7386) and a plain form of server-side apply."""

from typing import Any

from tests.simulation.apiserver_store import Doc

MAP_LIST_KEYS = {"conditions": "type", "ownerReferences": "uid"}
"""Lists that are merged by key. Everything else is atomic here, which is what CRDs without list types say too."""


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes, objects merge, all else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def apply(live: Doc, before: Doc, wanted: Doc, others: list[Doc]) -> Doc:
    """The object after a forced apply.

    before: what this manager applied last; its fields that are not wanted any more go, unless one of `others` (what
    the other managers applied last) has them.
    """
    merged: Doc = _merge(live, before, wanted, others)
    return merged


def _merge(live: Any, before: Any, wanted: Any, others: list[Any], name: str = "") -> Any:
    if isinstance(wanted, list) and name in MAP_LIST_KEYS and isinstance(live, list):
        return _merge_list(live, before if isinstance(before, list) else [], wanted, MAP_LIST_KEYS[name])
    if not isinstance(wanted, dict) or not isinstance(live, dict):
        return wanted
    before = before if isinstance(before, dict) else {}
    merged = dict(live)
    for key in before:
        if key not in wanted and not any(isinstance(o, dict) and key in o for o in others):
            merged.pop(key, None)
    for key, value in wanted.items():
        deeper = [o[key] for o in others if isinstance(o, dict) and key in o]
        merged[key] = _merge(merged[key], before.get(key), value, deeper, key) if key in merged else value
    return merged


def _merge_list(live: list[Any], before: list[Any], wanted: list[Any], key: str) -> list[Any]:
    given = {item[key]: item for item in wanted}
    dropped = {item[key] for item in before} - set(given)
    merged = [{**item, **given.pop(item[key], {})} for item in live if item.get(key) not in dropped]
    return merged + [item for item in wanted if item[key] in given]
