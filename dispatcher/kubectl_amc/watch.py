"""`kubectl amc get -w`: the streams of all members in one.

Every member is followed on its own. Its first rows are printed when they come; a member that cannot be reached is
reported once and tried again, the others go on. Unlike kubectl's, a watch of a name waits for the object to appear:
a job comes to a member only when it is dispatched there. Ends when interrupted.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from dispatcher.kubectl_amc import tables
from dispatcher.kubectl_amc.discovery import Kind, UnknownType, discover, resolve
from dispatcher.kubectl_amc.errors import AmcError
from dispatcher.kubectl_amc.fetch import JSON, Query, as_documents, as_tables, list_url
from dispatcher.kubectl_amc.get_options import GetOptions
from dispatcher.kubectl_amc.members import Member, described
from dispatcher.kubectl_amc.printing import StreamPrinter
from dispatcher.kubectl_amc.reading import ReadApi
from dispatcher.kubectl_amc.session import Session
from dispatcher.kubectl_amc.tables import Part, Row
from kube.api.errors import ApiError, Gone
from kube.api.status import error_of
from kube.objects.meta import Json

SERVER_SECONDS = 240
"""How long one watch request lasts; the server ends it and the next one resumes."""
GRACE_SECONDS = 15.0
"""Silence past that which means that the connection is dead."""
RESUME_SECONDS = 0.2
"""Pause between two watch requests, should a server end them at once."""
RETRY_SECONDS = 5.0
"""Pause before a member that failed is tried again."""


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Failures:
    """Says what is wrong with a member once, and again only when that changes."""

    def __init__(self, session: Session, cluster: str) -> None:
        self._session = session
        self._cluster = cluster
        self._last = ""

    def report(self, message: str) -> None:
        if message != self._last:
            self._session.terminal.report(message, cluster=self._cluster)
        self._last = message

    def over(self) -> None:
        self._last = ""


async def watch(options: GetOptions, session: Session, members: Sequence[Member]) -> int:
    """Returns (1) only once no member is left that knows the TYPE."""
    printer = StreamPrinter(options)
    async with asyncio.TaskGroup() as group:
        for member in members:
            group.create_task(_follow(options, session, member, printer))
    return 1


async def _follow(options: GetOptions, session: Session, member: Member, printer: StreamPrinter) -> None:
    """Until the member turns out not to know the TYPE."""
    (target,) = options.targets
    failures = _Failures(session, member.name)
    query = Query(
        namespace="" if options.all_namespaces else session.namespace,
        label_selector=options.selector,
        field_selector=f"metadata.name={target.names[0]}" if target.names else options.field_selector,
    )
    stream: _Stream | None = None
    while True:
        try:
            async with session.member(member) as api:
                if stream is None:
                    kind = resolve(await discover(api), target.type)
                    stream = _Stream(session, kind, query, member.name, printer)
                while True:
                    await stream.turn(api)
                    failures.over()
                    await asyncio.sleep(RESUME_SECONDS)
        except UnknownType as error:
            failures.report(str(error))
            return
        except ApiError as error:
            failures.report(described(error))
        except (AmcError, ValueError) as error:  # ValueError: an answer that no API server gives
            failures.report(str(error))
        await asyncio.sleep(RETRY_SECONDS)


class _Stream:
    """One kind in one member: list, then watch from there; list again when the server no longer knows the place."""

    def __init__(self, session: Session, kind: Kind, query: Query, cluster: str, printer: StreamPrinter) -> None:
        self._out = session.terminal.out
        self._kind = kind
        self._query = query
        self._cluster = cluster
        self._printer = printer
        self._columns: tuple[tuple[str, int], ...] = ()
        self._version = ""
        self._printed: dict[str, str] = {}
        """resourceVersion that was printed last, by uid: a new list prints only what changed."""

    async def turn(self, api: ReadApi) -> None:
        """One list if it is needed, and one watch request. Raises ApiError."""
        if not self._version:
            await self._list(api)
        url = list_url(
            self._kind,
            self._query,
            watch="1",
            resourceVersion=self._version,
            allowWatchBookmarks="true",
            timeoutSeconds=str(SERVER_SECONDS),
        )
        accept = tables.ACCEPT if self._printer.tabular else JSON
        try:
            async with api.watch_path(url, accept=accept, silence_seconds=SERVER_SECONDS + GRACE_SECONDS) as lines:
                async for line in lines:
                    self._event(msgspec.json.decode(line, type=_Event))
        except Gone:
            self._version = ""

    async def _list(self, api: ReadApi) -> None:
        before, self._printed = self._printed, {}
        if self._printer.tabular:
            answer = await as_tables(api, self._kind, self._query)
            found = tables.part(self._cluster, answer.tables)
            self._columns = found.columns
            self._print_rows([row for row in found.rows if self._is_new(row.object.metadata, before)])
        else:
            answer = await as_documents(api, self._kind, self._query)
            for document in answer.documents:
                if self._is_new(msgspec.convert(document["metadata"], tables.Metadata), before):
                    self._print_document(document)
        self._version = answer.version

    def _event(self, event: _Event) -> None:
        data = bytes(event.object)
        if event.type == "ERROR":
            raise error_of(0, data)
        if self._printer.tabular:
            rows = tables.decode(data).rows or []
            metadata = [row.object.metadata for row in rows]
        else:
            document = msgspec.json.decode(data)
            metadata = [msgspec.convert(document["metadata"], tables.Metadata)]
        for one in metadata:
            self._version = one.resource_version or self._version
            self._printed[one.uid] = one.resource_version
            if event.type in ("DELETED", "BOOKMARK"):
                self._printed.pop(one.uid, None)
        if event.type == "BOOKMARK":
            return
        if self._printer.tabular:
            self._print_rows(rows)
        else:
            self._print_document(document)

    def _is_new(self, metadata: tables.Metadata, before: dict[str, str]) -> bool:
        self._printed[metadata.uid] = metadata.resource_version
        return before.get(metadata.uid) != metadata.resource_version

    def _print_rows(self, rows: list[Row]) -> None:
        self._out(self._printer.rows(self._kind, Part(self._cluster, self._columns, tuple(rows))))

    def _print_document(self, document: Json) -> None:
        self._out(self._printer.document(self._kind, self._cluster, document))
