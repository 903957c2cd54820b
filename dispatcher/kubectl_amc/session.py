"""What a verb works with: the hub, a way to the members, and the user's terminal."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from dispatcher.kubectl_amc.members import Connect, Member, credentials
from dispatcher.kubectl_amc.reading import ReadApi


class Terminal(msgspec.Struct):
    """Data goes to `out`, messages to `err`. `failed`: something was reported, so the exit code is 1."""

    out: Callable[[str], None]
    err: Callable[[str], None]
    failed: bool = False

    def report(self, message: str, *, cluster: str = "") -> None:
        """A failure; the command goes on with the rest."""
        self.failed = True
        self.err(f"cluster({cluster}): {message}\n" if cluster else f"{message}\n")


class Session(msgspec.Struct):
    hub: ReadApi
    connect: Connect
    terminal: Terminal
    namespace: str = "default"
    """Of -n, else of the context."""
    allow_loopback: bool = False
    """Members may be on loopback (`connection.Hub.is_local`)."""

    @asynccontextmanager
    async def member(self, member: Member) -> AsyncIterator[ReadApi]:
        """Raises AmcError if its kubeconfig cannot be had."""
        found = await credentials(self.hub, member, allow_loopback=self.allow_loopback)
        async with self.connect(found) as api:
            yield api
