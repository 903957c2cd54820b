"""The command line of `kubectl amc get`."""

import argparse
from collections.abc import Sequence

import msgspec

from dispatcher.kubectl_amc.errors import UsageError
from dispatcher.kubectl_amc.options import ConnectionOptions, connection_options, parse

DESCRIPTION = "Show objects of member clusters: TYPE [NAME ...], TYPE/NAME ..., or TYPE,TYPE."

OUTPUTS = ("", "wide", "yaml", "json", "name")


class Target(msgspec.Struct, frozen=True):
    """Objects of one TYPE. No names: all of them."""

    type: str
    names: tuple[str, ...] = ()


class GetOptions(msgspec.Struct, frozen=True, kw_only=True):
    targets: tuple[Target, ...]
    clusters: tuple[str, ...] | None
    """None: all members."""
    all_namespaces: bool = False
    output: str = ""
    watch: bool = False
    selector: str = ""
    field_selector: str = ""
    headers: bool = True
    show_labels: bool = False
    managed_fields: bool = False
    connection: ConnectionOptions

    @property
    def tabular(self) -> bool:
        return self.output in ("", "wide")


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("arguments", nargs="*", metavar="TYPE [NAME ...]")
    where = parser.add_argument_group("which members (one of these is needed)")
    where.add_argument("-M", "--all-clusters", action="store_true", help="all members")
    where.add_argument("-m", "--clusters", default="", metavar="CLUSTER[,CLUSTER]", help="these members")
    what = parser.add_argument_group("which objects, and how")
    what.add_argument("-A", "--all-namespaces", action="store_true", help="objects of all namespaces")
    what.add_argument("-l", "--selector", default="", help="objects with these labels")
    what.add_argument("--field-selector", default="", help="objects with these field values")
    what.add_argument("-o", "--output", default="", choices=OUTPUTS[1:], help="default: a table")
    what.add_argument("-w", "--watch", action="store_true", help="go on printing what changes, until interrupted")
    what.add_argument("--no-headers", action="store_true", help="no line of column names")
    what.add_argument("--show-labels", action="store_true", help="a last column with all labels")
    what.add_argument("--show-managed-fields", action="store_true", help="keep managedFields in yaml and json")


def get_options(arguments: Sequence[str]) -> GetOptions:
    """Raises UsageError."""
    parsed = parse("get", arguments, DESCRIPTION, flags)
    clusters = tuple(part.strip() for part in parsed.clusters.split(",") if part.strip())
    if parsed.all_clusters and clusters:
        raise UsageError("give -M for all members or -m for some, not both")
    if not parsed.all_clusters and not clusters:
        raise UsageError("say which members: -M for all of them, or -m CLUSTER[,CLUSTER]")
    options = GetOptions(
        targets=targets(parsed.arguments),
        clusters=None if parsed.all_clusters else clusters,
        all_namespaces=parsed.all_namespaces,
        output=parsed.output,
        watch=parsed.watch,
        selector=parsed.selector,
        field_selector=parsed.field_selector,
        headers=not parsed.no_headers,
        show_labels=parsed.show_labels,
        managed_fields=parsed.show_managed_fields,
        connection=connection_options(parsed),
    )
    named = any(target.names for target in options.targets)
    if named and options.all_namespaces:
        raise UsageError("a resource cannot be retrieved by name across all namespaces")
    if named and (options.selector or options.field_selector):
        raise UsageError("selectors cannot be given together with names")
    if options.watch and (len(options.targets) > 1 or len(options.targets[0].names) > 1):
        raise UsageError("one TYPE, or one object, can be watched at a time")
    return options


def targets(arguments: Sequence[str]) -> tuple[Target, ...]:
    """Raises UsageError."""
    if not arguments:
        raise UsageError("say what to get: TYPE [NAME ...], such as `kubectl amc get pytorchjob -M`")
    if any("/" in argument for argument in arguments):
        names: dict[str, list[str]] = {}
        for argument in arguments:
            type_, slash, name = argument.partition("/")
            if not (type_ and slash and name) or "/" in name:
                raise UsageError(f"{argument!r}: with TYPE/NAME, every argument has to be one")
            names.setdefault(type_, []).append(name)
        return tuple(Target(type_, tuple(dict.fromkeys(found))) for type_, found in names.items())
    types = [part for part in arguments[0].split(",") if part]
    if not types:
        raise UsageError(f"{arguments[0]!r} names no TYPE")
    return tuple(Target(type_, tuple(dict.fromkeys(arguments[1:]))) for type_ in dict.fromkeys(types))
