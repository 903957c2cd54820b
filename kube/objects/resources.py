"""Vectors of resource amounts: `{"cpu": millicores, "memory": bytes, "nvidia.com/gpu": devices, "pods": slots}`.

A missing key is zero. Vectors are plain dictionaries; functions without `_into` return new ones and never
keep a zero, so that equal vectors are equal dictionaries.
"""

from collections.abc import Mapping

from kube.objects.quantity import Value, amount, format_amount

Resources = dict[str, int]

UNBOUNDED = 1 << 62
"""How often an empty request fits."""


def parse_resources(quantities: Mapping[str, Value | None] | None, *, keep_zero: bool = False) -> Resources:
    """Amounts of a Kubernetes resource list. Null values are absent; zeros are dropped unless `keep_zero`.

    Raises QuantityError naming the resource.
    """
    parsed: Resources = {}
    for name, value in (quantities or {}).items():
        if value is None:
            continue
        units = amount(name, value)
        if units or keep_zero:
            parsed[name] = units
    return parsed


def format_resources(resources: Mapping[str, int]) -> dict[str, str]:
    """Canonical quantities, keys sorted; the inverse of `parse_resources(…, keep_zero=True)`."""
    return {name: format_amount(name, resources[name]) for name in sorted(resources)}


def add(left: Mapping[str, int], right: Mapping[str, int]) -> Resources:
    total = dict(left)
    for name, units in right.items():
        total[name] = total.get(name, 0) + units
    return {name: units for name, units in total.items() if units}


def subtract(left: Mapping[str, int], right: Mapping[str, int]) -> Resources:
    """`left - right`; may hold negative amounts (an overcommitted node)."""
    rest = dict(left)
    for name, units in right.items():
        rest[name] = rest.get(name, 0) - units
    return {name: units for name, units in rest.items() if units}


def add_into(total: Resources, other: Mapping[str, int], times: int = 1) -> None:
    """`total += times * other`, in place. Zeros may stay: for running sums on the hot path."""
    for name, units in other.items():
        total[name] = total.get(name, 0) + times * units


def scale(resources: Mapping[str, int], times: int) -> Resources:
    return {name: units * times for name, units in resources.items()} if times else {}


def maximum(left: Mapping[str, int], right: Mapping[str, int]) -> Resources:
    """Per-key maximum."""
    result = dict(left)
    for name, units in right.items():
        if units > result.get(name, 0):
            result[name] = units
    return result


def fits(need: Mapping[str, int], free: Mapping[str, int]) -> bool:
    """Whether every amount asked for is there. A zero or absent ask always fits, even where free is negative
    (kube-scheduler noderesources/fit.go)."""
    for name, units in need.items():  # noqa: SIM110  a generator costs three times as much here
        if units > 0 and units > free.get(name, 0):
            return False
    return True


def fit_count(need: Mapping[str, int], free: Mapping[str, int]) -> int:
    """How many copies of `need` fit into `free`; UNBOUNDED if nothing is asked for."""
    count = UNBOUNDED
    for name, units in need.items():
        if units > 0:
            count = min(count, max(0, free.get(name, 0)) // units)
    return count


def shortage(need: Mapping[str, int], free: Mapping[str, int]) -> Resources:
    """What is missing, per resource that is short: need - max(free, 0)."""
    short: Resources = {}
    for name, units in need.items():
        missing = units - max(0, free.get(name, 0))
        if units > 0 and missing > 0:
            short[name] = missing
    return short


def dominant_share(need: Mapping[str, int], total: Mapping[str, int]) -> float:
    """Largest share of any one resource of `total` (dominant resource fairness); infinite where there is none of it."""
    share = 0.0
    for name, units in need.items():
        if units > 0:
            available = total.get(name, 0)
            share = max(share, units / available if available > 0 else float("inf"))
    return share
