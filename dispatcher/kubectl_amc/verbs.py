"""The verbs of `kubectl amc`, by name."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from dispatcher.kubectl_amc import get, get_options
from dispatcher.kubectl_amc.options import ConnectionOptions
from dispatcher.kubectl_amc.session import Session


class Options(Protocol):
    @property
    def connection(self) -> ConnectionOptions: ...


OptionsT = TypeVar("OptionsT", bound=Options)


class Verb(msgspec.Struct, Generic[OptionsT], frozen=True):
    summary: str
    parse: Callable[[Sequence[str]], OptionsT]
    """Raises UsageError."""
    run: Callable[[OptionsT, Session], Awaitable[int]]
    """The exit code. Raises AmcError."""


VERBS: dict[str, Verb[Any]] = {
    "get": Verb(get_options.DESCRIPTION, get_options.get_options, get.run),
}


def usage() -> str:
    lines = [f"  {name:<10} {verb.summary}" for name, verb in VERBS.items()]
    return (
        "Look into the member clusters of this hub.\n\nUsage:\n  kubectl amc VERB [arguments] [flags]\n\nVerbs:\n"
        + "\n".join(lines)
        + "\n\n`kubectl amc VERB --help` shows the flags of a verb.\n"
    )
