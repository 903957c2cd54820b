"""Label selectors and node selector requirements (apimachinery labels.Requirement).

Parsed once into frozen, hashable values; matching is plain dictionary look-ups.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

Labels = Mapping[str, str]


class SelectorError(ValueError):
    """A selector the API server would refuse; the message names the key or operator."""


class Requirement(msgspec.Struct, frozen=True):
    """One expression. operator: In, NotIn, Exists, DoesNotExist, Gt, Lt (the last two on nodes only)."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Labels) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                # An absent label is not in any set (labels.Requirement.Matches).
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return value is not None and self._compares(value)
            case _:
                return False

    def _compares(self, value: str) -> bool:
        """Gt and Lt compare 64-bit integers; anything else does not match."""
        left, right = integer(value), integer(self.values[0]) if len(self.values) == 1 else None
        if left is None or right is None:
            return False
        return left > right if self.operator == "Gt" else left < right


class LabelSelector(msgspec.Struct, frozen=True):
    """All requirements must match. No requirement at all: everything matches (metav1.LabelSelector `{}`)."""

    requirements: tuple[Requirement, ...] = ()
    nothing: bool = False
    """A null selector: nothing matches."""

    def matches(self, labels: Labels) -> bool:
        if self.nothing:
            return False
        for requirement in self.requirements:  # noqa: SIM110  hot path
            if not requirement.matches(labels):
                return False
        return True

    @property
    def everything(self) -> bool:
        return not self.nothing and not self.requirements

    @property
    def keys(self) -> frozenset[str]:
        """Label keys the result depends on."""
        return frozenset(requirement.key for requirement in self.requirements)

    def extended(self, requirements: Iterable[Requirement]) -> "LabelSelector":
        """With further requirements; a null selector stays null."""
        if self.nothing:
            return self
        return LabelSelector((*self.requirements, *(r for r in requirements if r not in self.requirements)))


NOTHING = LabelSelector(nothing=True)

_LABEL_OPERATORS = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})


def label_selector(document: Mapping[str, Any] | None) -> LabelSelector:
    """metav1.LabelSelector {matchLabels, matchExpressions}; null matches nothing. Raises SelectorError."""
    if document is None:
        return NOTHING
    if not isinstance(document, Mapping):
        raise SelectorError(f"label selector {document!r} is not an object")
    requirements = [
        Requirement(key, "In", (value,)) for key, value in sorted((document.get("matchLabels") or {}).items())
    ]
    for expression in document.get("matchExpressions") or ():
        requirement = requirement_of(expression)
        if requirement.operator not in _LABEL_OPERATORS:
            raise SelectorError(f"label selector: {requirement.operator!r} is not In, NotIn, Exists or DoesNotExist")
        if bool(requirement.values) != (requirement.operator in ("In", "NotIn")):
            raise SelectorError(
                f"label selector: key {requirement.key!r} with operator {requirement.operator} has "
                f"{len(requirement.values)} values"
            )
        requirements.append(requirement)
    return LabelSelector(tuple(requirements))


def requirement_of(expression: Mapping[str, Any]) -> Requirement:
    """{key, operator, values} as written; the operator is checked by the caller. Raises SelectorError."""
    if not isinstance(expression, Mapping) or not isinstance(expression.get("key"), str):
        raise SelectorError(f"expression {expression!r} has no key")
    values = expression.get("values") or []
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise SelectorError(f"expression on {expression['key']!r}: values {values!r} are not a list of strings")
    return Requirement(expression["key"], str(expression.get("operator") or ""), tuple(values))


def integer(text: str) -> int | None:
    """Go's strconv.ParseInt(text, 10, 64): optional sign and ASCII digits, within 64 bits; None if it is not that."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 32:
        return None
    number = int(text)
    return number if -(1 << 63) <= number < (1 << 63) else None
