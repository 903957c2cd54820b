"""Tables as API servers make them (meta.k8s.io/v1 Table), joined over members and laid out as kubectl does. Pure.

`NAMESPACE NAME CLUSTER ... ADOPTION LABELS`: namespace only with -A, adoption not for pods unless wide, labels only
when asked for.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from kube.objects.names import MANAGED

ACCEPT = "application/json;as=Table;v=v1;g=meta.k8s.io"

_GAP = "   "


class _Column(msgspec.Struct):
    name: str
    priority: int = 0
    """0: always shown; more: with -o wide."""


class Metadata(msgspec.Struct, rename="camel"):
    """Of an object: what rows carry besides their cells."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None


class _Object(msgspec.Struct):
    metadata: Metadata = msgspec.field(default_factory=Metadata)


class Row(msgspec.Struct):
    cells: list[Any]
    object: _Object = msgspec.field(default_factory=_Object)


class _ListMetadata(msgspec.Struct):
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    continue_token: str = msgspec.field(name="continue", default="")


class Table(msgspec.Struct, rename="camel"):
    """One answer. Watch events after the first of a stream have rows but no columns."""

    kind: str
    metadata: _ListMetadata = msgspec.field(default_factory=_ListMetadata)
    column_definitions: list[_Column] | None = None
    rows: list[Row] | None = None


class Part(msgspec.Struct, frozen=True):
    """The rows of one member, with the columns they have."""

    cluster: str
    columns: tuple[tuple[str, int], ...]
    """(name, priority)."""
    rows: tuple[Row, ...]


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    namespace: bool = False
    wide: bool = False
    adoption: bool = True
    labels: bool = False
    prefix: str = ""
    """`pytorchjob.kubeflow.org/` before names, when several kinds are printed."""


def decode(data: bytes) -> Table:
    """Raises msgspec.DecodeError; ValueError if the server answered something else than a table."""
    table = msgspec.json.decode(data, type=Table)
    if table.kind != "Table":
        raise ValueError(f"the server answered {table.kind} instead of a table")
    return table


def part(cluster: str, tables: Sequence[Table]) -> Part:
    """The pages of one answer, or single objects one after the other, as one."""
    columns = next((t.column_definitions for t in tables if t.column_definitions), None) or []
    return Part(
        cluster, tuple((c.name, c.priority) for c in columns), tuple(row for t in tables for row in t.rows or ())
    )


def column_names(parts: Iterable[Part], layout: Layout) -> list[str]:
    """The members' own columns that are shown: those of the first, then what others have besides."""
    names: dict[str, None] = {}
    for found in parts:
        names |= {name: None for name, priority in found.columns if layout.wide or priority == 0}
    return list(names)


def header(names: Sequence[str], layout: Layout) -> list[str]:
    return _line(
        [name.upper() for name in names],
        layout,
        named=_has_name(names),
        namespace="NAMESPACE",
        cluster="CLUSTER",
        adoption="ADOPTION",
        labels="LABELS",
    )


def lines(found: Part, names: Sequence[str], layout: Layout) -> list[list[str]]:
    """Cells of each row under `names`; a column that this member does not have is <none>."""
    places = {name: place for place, (name, _) in enumerate(found.columns)}
    named = _has_name(names)
    result = []
    for row in found.rows:
        cells = [_cell(row.cells[places[n]]) if n in places else "<none>" for n in names]
        if named:
            cells[0] = layout.prefix + cells[0]
        labels = row.object.metadata.labels or {}
        result.append(
            _line(
                cells,
                layout,
                named=named,
                namespace=row.object.metadata.namespace,
                cluster=found.cluster,
                adoption="Y" if labels.get(MANAGED) == "true" else "N",
                labels=",".join(f"{key}={value}" for key, value in sorted(labels.items())) or "<none>",
            )
        )
    return result


def widths(rows: Iterable[Sequence[str]], least: Sequence[int] = ()) -> list[int]:
    """Width of each column, at least `least`."""
    result = list(least)
    for row in rows:
        result += [0] * (len(row) - len(result))
        for place, cell in enumerate(row):
            result[place] = max(result[place], len(cell))
    return result


def text(rows: Iterable[Sequence[str]], column_widths: Sequence[int]) -> str:
    """Columns three spaces apart, the last one not padded."""
    return "".join(
        _GAP.join(
            cell if place == len(row) - 1 else cell.ljust(column_widths[place]) for place, cell in enumerate(row)
        ).rstrip()
        + "\n"
        for row in rows
    )


def printable(value: str) -> str:
    """One line without control characters: what members say must not drive the user's terminal."""
    first, *rest = value.splitlines() or [""]
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in first) + ("..." if rest else "")


def _has_name(names: Sequence[str]) -> bool:
    """Events have no Name; their cluster goes to the front."""
    return bool(names) and names[0] == "Name"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return printable(str(value))


def _line(
    cells: list[str], layout: Layout, *, named: bool, namespace: str, cluster: str, adoption: str, labels: str
) -> list[str]:
    place = 1 if named else 0
    return [
        *([namespace] if layout.namespace else []),
        *cells[:place],
        cluster,
        *cells[place:],
        *([adoption] if layout.adoption else []),
        *([labels] if layout.labels else []),
    ]
