"""How objects of one kind from several members reach the terminal, all at once or one by one as they change."""

from collections.abc import Sequence

from dispatcher.kubectl_amc import documents, tables
from dispatcher.kubectl_amc.discovery import Kind
from dispatcher.kubectl_amc.get_options import GetOptions
from dispatcher.kubectl_amc.tables import Layout, Part
from kube.objects.meta import Json


def layout(options: GetOptions, kind: Kind) -> Layout:
    wide = options.output == "wide"
    is_pod = (kind.resource.group, kind.resource.plural) == ("", "pods")
    return Layout(
        namespace=options.all_namespaces and kind.resource.namespaced,
        wide=wide,
        adoption=wide or not is_pod,
        labels=options.show_labels,
        prefix=f"{kind.qualified}/" if len(options.targets) > 1 else "",
    )


def table(parts: Sequence[Part], shape: Layout, *, headers: bool) -> str:
    """One table of all members."""
    names = tables.column_names(parts, shape)
    rows = [row for found in parts for row in tables.lines(found, names, shape)]
    if headers:
        rows.insert(0, tables.header(names, shape))
    return tables.text(rows, tables.widths(rows))


class StreamPrinter:
    """Text of objects that come one by one (-w), those of all members together.

    A table has the columns of its first rows, which get wider but never narrower.
    """

    def __init__(self, options: GetOptions) -> None:
        self.tabular = options.tabular
        self._options = options
        self._names: list[str] = []
        self._widths: list[int] = []

    def rows(self, kind: Kind, found: Part) -> str:
        """The text of these rows, after the header if they are the first."""
        if not found.rows:
            return ""
        shape = layout(self._options, kind)
        rows = []
        if not self._names:
            self._names = tables.column_names([found], shape)
            if self._options.headers:
                rows.append(tables.header(self._names, shape))
        rows += tables.lines(found, self._names, shape)
        self._widths = tables.widths(rows, self._widths)
        return tables.text(rows, self._widths)

    def document(self, kind: Kind, cluster: str, found: Json) -> str:
        if self._options.output == "name":
            return documents.as_name(kind, found["metadata"]["name"])
        printed = document(self._options, found, cluster)
        return documents.as_json(printed) if self._options.output == "json" else "---\n" + documents.as_yaml(printed)


def document(options: GetOptions, found: Json, cluster: str) -> Json:
    """As it is printed: annotated with its member unless that is the only one asked for."""
    alone = options.clusters is not None and len(options.clusters) == 1
    return documents.shown(found, cluster="" if alone else cluster, managed_fields=options.managed_fields)
