"""`muster-dispatcher`, `python -m dispatcher`: reads the settings, connects to the hub, runs until told to stop."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version

from dispatcher.leadership import LeadersApi
from dispatcher.members import Connect
from dispatcher.options import Options, parse
from dispatcher.program import Dispatcher
from dispatcher.server import StatusServer
from kube.api.api import Api
from kube.api.client import ClientOptions, HttpApi
from kube.api.clock import SystemClock
from kube.api.kubeconfig import ConfigRefused, validate_member_kubeconfig

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def main() -> None:
    options = parse()
    logging.basicConfig(level=options.log_level.upper(), format=LOG_FORMAT, stream=sys.stderr)
    try:
        asyncio.run(run(options))
    except ConfigRefused as refused:
        print(f"muster-dispatcher: {refused}", file=sys.stderr)
        sys.exit(2)


def version() -> str:
    try:
        return package_version("muster")
    except PackageNotFoundError:
        return "0+source"


async def run(options: Options) -> None:
    """Until SIGTERM or SIGINT. Raises ConfigRefused for a hub configuration that cannot be used."""
    clock = SystemClock()
    async with await _hub(options) as hub:
        dispatcher = Dispatcher(
            hub,
            lambda leading: _connect(options, leading),
            clock,
            options,
            identity=f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}",
            version=version(),
        )
        async with StatusServer(options.metrics_listen, dispatcher.metrics, dispatcher.not_ready):
            life = asyncio.create_task(dispatcher.run())
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, life.cancel)
            with contextlib.suppress(asyncio.CancelledError):
                await life


async def _hub(options: Options) -> HttpApi:
    agent = f"muster-dispatcher/{version()}"
    limits = ClientOptions(call_seconds=options.hub_call_seconds)
    if not options.kubeconfig and "KUBERNETES_SERVICE_HOST" in os.environ:
        return await HttpApi.in_cluster(user_agent=agent, options=limits)
    return await HttpApi.from_kubeconfig(
        options.kubeconfig or None, user_agent=agent, context=options.context, options=limits
    )


def _connect(options: Options, leading: Callable[[], bool]) -> Connect:
    @asynccontextmanager
    async def opened(api: HttpApi) -> AsyncIterator[Api]:
        async with api:
            yield LeadersApi(api, leading)

    async def connect(_: str, kubeconfig: bytes) -> AbstractAsyncContextManager[Api]:
        credentials = validate_member_kubeconfig(kubeconfig, options.allow_loopback_members)
        limits = ClientOptions(call_seconds=options.member_call_seconds)
        return opened(
            await HttpApi.for_member(credentials, user_agent=f"muster-dispatcher/{version()}", options=limits)
        )

    return connect


if __name__ == "__main__":
    main()
