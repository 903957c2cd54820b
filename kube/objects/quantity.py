"""Kubernetes quantities, exact and strict (apimachinery `resource.Quantity` grammar).

<quantity> = [+-]<digits>[.<digits>]<suffix>; suffix: n u m k M G T P E, Ki Mi Gi Ti Pi Ei, or e<exponent>.
Amounts are integers in the units kube-scheduler counts in: cpu in millicores, everything else in whole units
(bytes, devices), each rounded up (`Quantity.MilliValue`, `Quantity.Value`).
"""

import math
import re
from fractions import Fraction
from functools import lru_cache

Value = str | int | float
"""A quantity as it travels: string, or a bare number in YAML and JSON."""

_SHAPE = re.compile(r"([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?", re.ASCII)
_FACTORS = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
}
_BINARY = [("Ei", 1 << 60), ("Pi", 1 << 50), ("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)]
_FACTORS.update((suffix, Fraction(factor)) for suffix, factor in _BINARY)
_LARGEST_EXPONENT = 64
"""No resource needs more; an unbounded exponent would let one line of YAML eat the memory."""
_LONGEST = 128


class QuantityError(ValueError):
    """Not a quantity, or a quantity that cannot be an amount. The message names the value and what is wrong."""


def parse_quantity(value: Value) -> Fraction:
    """The exact number. Floats are read as the decimal they print as (0.1 is one tenth). Raises QuantityError."""
    if isinstance(value, bool):
        raise QuantityError(f"quantity {value!r} is a boolean, not a number")
    if isinstance(value, int):
        return Fraction(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise QuantityError(f"quantity {value!r} is not a finite number")
        return Fraction(repr(value))
    if not isinstance(value, str):
        raise QuantityError(f"quantity {value!r} is neither a string nor a number")
    if len(value) > _LONGEST:
        raise QuantityError(f"quantity {value[:16]!r}… is longer than {_LONGEST} characters")
    match = _SHAPE.fullmatch(value)
    if match is None:
        raise QuantityError(
            f"quantity {value!r} is not a number with an optional suffix (n u m k M G T P E, Ki Mi Gi Ti Pi Ei, e3)"
        )
    sign, digits, suffix = match.groups()
    number = Fraction(digits)
    if suffix:
        factor = _FACTORS.get(suffix)
        if factor is None:
            exponent = int(suffix[1:])
            if abs(exponent) > _LARGEST_EXPONENT:
                raise QuantityError(f"quantity {value!r} has an exponent beyond {_LARGEST_EXPONENT}")
            factor = Fraction(10) ** exponent
        number *= factor
    return -number if sign == "-" else number


@lru_cache(maxsize=1 << 14, typed=True)
def milli_units(value: Value) -> int:
    """The quantity in thousandths, rounded up as the API server rounds each quantity of a resource list when it takes
    it in (apis/core/v1 SetDefaults_ResourceList): sums of these are its sums.

    Raises QuantityError, also for negative values: no resource amount is negative.
    """
    number = parse_quantity(value)
    if number < 0:
        raise QuantityError(f"quantity {value!r} is negative")
    return math.ceil(number * 1000)


def amount_of_milli(resource: str, milli: int) -> int:
    """Amount of `resource` from thousandths, rounded up."""
    return milli if base_resource(resource) == "cpu" else -(-milli // 1000)


@lru_cache(maxsize=1 << 14, typed=True)
def amount(resource: str, value: Value) -> int:
    """Integer amount as kube-scheduler's `Resource` counts it: cpu in millicores, others in units, rounded up.

    Raises QuantityError naming the resource.
    """
    try:
        return amount_of_milli(resource, milli_units(value))
    except QuantityError as error:
        raise QuantityError(f"{resource}: {error}") from None


def base_resource(resource: str) -> str:
    """`requests.cpu` and `limits.cpu` of a ResourceQuota count like cpu."""
    return resource.removeprefix("requests.").removeprefix("limits.")


def is_bytes(resource: str) -> bool:
    base = base_resource(resource)
    return base in ("memory", "ephemeral-storage", "storage") or base.startswith("hugepages-")


def format_amount(resource: str, amount: int) -> str:
    """Canonical string of an amount: cpu 4010 is "4010m", 4000 is "4"; bytes take the largest suffix that is exact."""
    if base_resource(resource) == "cpu":
        return f"{amount}m" if amount % 1000 else str(amount // 1000)
    if amount and is_bytes(resource):
        for suffix, factor in _BINARY:
            if amount % factor == 0:
                return f"{amount // factor}{suffix}"
    return str(amount)
