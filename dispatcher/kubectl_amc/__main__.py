"""Entry of kubectl-amc: flags, the hub's kubeconfig, and one run of a verb. Exit codes: 0, 1 for errors, 130 for ^C."""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dispatcher.kubectl_amc.connection import impersonation, load_hub
from dispatcher.kubectl_amc.errors import AmcError, UsageError
from dispatcher.kubectl_amc.options import ConnectionOptions, verb_of
from dispatcher.kubectl_amc.reading import ReadApi
from dispatcher.kubectl_amc.session import Session, Terminal
from dispatcher.kubectl_amc.verbs import VERBS, Verb, usage
from kube.api.client import ClientOptions, HttpApi
from kube.api.kubeconfig import ConfigRefused, MemberCredentials

LOG_CALLS = 6
"""Verbosity (-v) from which on calls are logged, as in kubectl."""
NO_LIMIT_SECONDS = 24 * 3600.0
"""--request-timeout 0."""


def main(arguments: Sequence[str] | None = None) -> int:
    verb_name, rest = verb_of(sys.argv[1:] if arguments is None else arguments)
    if not verb_name:
        asked = {"-h", "--help"} & set(rest)
        (sys.stdout if asked or not rest else sys.stderr).write(usage())
        return 0 if asked or not rest else 1
    try:
        verb = VERBS.get(verb_name)
        if verb is None:
            raise UsageError(f"unknown verb \"{verb_name}\"\nSee 'kubectl amc --help' for usage.")
        return asyncio.run(_run(verb, verb.parse(rest)))
    except (AmcError, ConfigRefused) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return _reader_gone()
    except ExceptionGroup as group:
        if group.split(BrokenPipeError)[1] is not None:
            raise
        return _reader_gone()


def _reader_gone() -> int:
    """After head or less has closed the pipe: what is still buffered must not be written at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


async def _run(verb: Verb[Any], options: Any) -> int:
    connection: ConnectionOptions = options.connection
    logging.basicConfig(level=logging.DEBUG if connection.verbosity >= LOG_CALLS else logging.ERROR)
    hub = load_hub(connection, os.environ, Path.home())
    limits = client_options(connection)

    @asynccontextmanager
    async def connect(credentials: MemberCredentials) -> AsyncIterator[ReadApi]:
        async with await HttpApi.for_member(credentials, user_agent=_user_agent(), options=limits) as api:
            yield api

    async with await HttpApi.from_kubeconfig(
        hub.document,
        user_agent=_user_agent(),
        options=limits,
        headers=impersonation(connection, hub.document),
    ) as api:
        session = Session(
            hub=api,
            connect=connect,
            terminal=Terminal(_write_out, _write_error),
            namespace=hub.namespace,
            allow_loopback=hub.is_local,
        )
        return await verb.run(options, session)


def client_options(connection: ConnectionOptions) -> ClientOptions:
    """Limits of the calls. By default 10 s, so that a member that hangs does not hold up the others for longer."""
    if connection.request_timeout is None:
        return ClientOptions()
    return ClientOptions(call_seconds=connection.request_timeout or NO_LIMIT_SECONDS)


def _write_out(text: str) -> None:
    """At once, so that a watch can be piped."""
    sys.stdout.write(text)
    sys.stdout.flush()


def _write_error(text: str) -> None:
    sys.stderr.write(text)


def _user_agent() -> str:
    try:
        return f"kubectl-amc/{version('muster')}"
    except PackageNotFoundError:
        return "kubectl-amc"


if __name__ == "__main__":
    sys.exit(main())
