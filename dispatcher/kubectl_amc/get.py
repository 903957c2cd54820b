"""`kubectl amc get TYPE [NAME ...] -M | -m CLUSTER[,CLUSTER]`.

Every member is read at the same time. One that cannot be read is reported on stderr, the rest is printed, and the
exit code is 1. An object asked for by name has to be in one of the members, not in all of them.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from dispatcher.kubectl_amc import documents, printing, tables
from dispatcher.kubectl_amc.discovery import Kind, UnknownType, discover, resolve
from dispatcher.kubectl_amc.errors import AmcError
from dispatcher.kubectl_amc.fetch import Answer, Query, as_documents, as_tables
from dispatcher.kubectl_amc.get_options import GetOptions, Target
from dispatcher.kubectl_amc.members import Member, chosen, described
from dispatcher.kubectl_amc.session import Session, Terminal
from dispatcher.kubectl_amc.watch import watch
from kube.api.errors import ApiError


class Found(msgspec.Struct, frozen=True):
    """What one member has of one target."""

    cluster: str
    target: Target
    kind: Kind
    answer: Answer


class Outcome(msgspec.Struct):
    """What reading one member came to."""

    cluster: str
    found: list[Found] = []
    unknown: list[UnknownType] = []
    errors: list[str] = []


async def run(options: GetOptions, session: Session) -> int:
    """The exit code. Raises AmcError if nothing could be asked at all."""
    members = await chosen(session.hub, options.clusters)
    if options.watch:
        return await watch(options, session, members)
    outcomes = await read_all(options, session, members)
    report(options, session.terminal, outcomes)
    show(options, session, [found for outcome in outcomes for found in outcome.found])
    return 1 if session.terminal.failed else 0


async def read_all(options: GetOptions, session: Session, members: Sequence[Member]) -> list[Outcome]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(read(options, session, member)) for member in members]
    return [task.result() for task in tasks]


async def read(options: GetOptions, session: Session, member: Member) -> Outcome:
    """Everything that is asked of one member."""
    outcome = Outcome(member.name)
    try:
        async with session.member(member) as api:
            kinds = await discover(api)
            for target in options.targets:
                try:
                    kind = resolve(kinds, target.type)
                    query = query_of(options, session, target)
                    read_as = as_tables if options.tabular else as_documents
                    outcome.found.append(Found(member.name, target, kind, await read_as(api, kind, query)))
                except UnknownType as error:
                    outcome.unknown.append(error)
    except ApiError as error:
        outcome.errors.append(described(error))
    except (AmcError, ValueError) as error:  # ValueError: an answer that no API server gives
        outcome.errors.append(str(error))
    return outcome


def query_of(options: GetOptions, session: Session, target: Target) -> Query:
    return Query(
        namespace="" if options.all_namespaces else session.namespace,
        names=target.names,
        label_selector=options.selector,
        field_selector=options.field_selector,
    )


def report(options: GetOptions, terminal: Terminal, outcomes: Sequence[Outcome]) -> None:
    """What went wrong, per member; a TYPE that no member knows once."""
    for outcome in outcomes:
        for message in outcome.errors:
            terminal.report(message, cluster=outcome.cluster)
    reached = [outcome for outcome in outcomes if not outcome.errors]
    for target in options.targets:
        unknown = [o for o in reached if str(UnknownType(target.type)) in map(str, o.unknown)]
        if unknown and len(unknown) == len(reached):
            terminal.report(f"error: {UnknownType(target.type)}")
        else:
            for outcome in unknown:
                terminal.report(str(UnknownType(target.type)), cluster=outcome.cluster)
        found = [f for outcome in outcomes for f in outcome.found if f.target == target]
        for name in target.names:
            if found and all(name in f.answer.missing for f in found):
                for f in found:
                    terminal.report(f'{f.kind.qualified_plural} "{name}" not found', cluster=f.cluster)


def show(options: GetOptions, session: Session, found: Sequence[Found]) -> None:
    if options.tabular:
        show_tables(options, session, found)
        return
    objects = [
        (f.kind, printing.document(options, document, f.cluster)) for f in found for document in f.answer.documents
    ]
    if options.output == "name":
        session.terminal.out("".join(documents.as_name(kind, o["metadata"]["name"]) for kind, o in objects))
    elif objects or (found and not session.terminal.failed):
        single = sum(len(target.names) for target in options.targets) == 1
        whole = documents.joined([o for _, o in objects], single=single)
        session.terminal.out(documents.as_json(whole) if options.output == "json" else documents.as_yaml(whole))


def show_tables(options: GetOptions, session: Session, found: Sequence[Found]) -> None:
    printed = []
    for target in options.targets:
        answers = [f for f in found if f.target == target]
        parts = [tables.part(f.cluster, f.answer.tables) for f in answers]
        if any(p.rows for p in parts):
            shape = printing.layout(options, answers[0].kind)
            printed.append(printing.table([p for p in parts if p.rows], shape, headers=options.headers))
    session.terminal.out("\n".join(printed))
    missing = any(f.answer.missing for f in found)
    if found and not printed and not missing:
        session.terminal.err(nothing_found(options, session, found[0].kind))


def nothing_found(options: GetOptions, session: Session, kind: Kind) -> str:
    where = "" if options.all_namespaces or not kind.resource.namespaced else f" in {session.namespace} namespace"
    return f"No resources found{where}.\n" if where else "No resources found\n"
