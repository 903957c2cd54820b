"""What the command needs of an API server: raw reads, so that the server makes the tables."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol


class ReadApi(Protocol):
    """Raises ApiError. `kube.api.client.HttpApi` is one."""

    async def read_path(self, path: str, *, accept: str = "application/json", timeout: float | None = None) -> bytes:
        """GET."""
        ...

    def watch_path(
        self, path: str, *, accept: str = "application/json", silence_seconds: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Lines of the watch stream at `path`, whose query asks for one. silence_seconds: after that long without a
        byte it is Unreachable."""
        ...
