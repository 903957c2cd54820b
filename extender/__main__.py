"""`muster-extender`: options, signals, exit code."""

import asyncio
import logging
import resource
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from extender import logs
from extender.options import Options, parse
from extender.program import Extender
from extender.tls import ServerTls, TlsError, TlsFiles
from kube.api.client import ClientOptions, HttpApi
from kube.api.clock import SystemClock
from kube.api.kubeconfig import ConfigRefused

log = logging.getLogger("extender")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 after SIGTERM or SIGINT, 1 after a failure, 2 for options that cannot be."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    logs.set_up(options.log_level)
    _allow_many_connections(options.backlog)
    try:
        asyncio.run(_run(options))
    except (ConfigRefused, TlsError, OSError) as problem:
        log.error(logs.line("cannot run", err=problem))  # noqa: TRY400 - the message says it all
        return 1
    except BaseExceptionGroup as failures:
        for failure in _leaves(failures):
            log.error(logs.line("failed, ending", err=repr(failure)), exc_info=failure)  # noqa: TRY400
        return 1
    log.info("stopped")
    return 0


async def _run(options: Options) -> None:
    release = _version()
    tls = ServerTls(TlsFiles(cert=options.tls_cert, key=options.tls_key, client_ca=options.client_ca))
    limits = ClientOptions(
        call_seconds=options.api_timeout,
        watch_seconds=options.watch_timeout,
        # More than Bindings take, so that a lease or a status never waits behind a gang.
        connections=options.bind_concurrency + 16,
        multiplex=True,
    )
    agent = f"muster-extender/{release}"
    api = (
        await HttpApi.from_kubeconfig(options.kubeconfig, user_agent=agent, options=limits)
        if options.kubeconfig
        else await HttpApi.in_cluster(user_agent=agent, options=limits)
    )
    async with api:
        extender = Extender(options, api, SystemClock(), tls, version=release)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, extender.stopping.set)
        await extender.run()


def _version() -> str:
    try:
        return version("muster")
    except PackageNotFoundError:
        return "0.0.0+source"


def _allow_many_connections(backlog: int) -> None:
    """One connection per held bind: the soft limit of open files is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, 2 * backlog + 1024)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for failure in group.exceptions:
        found += _leaves(failure) if isinstance(failure, BaseExceptionGroup) else [failure]
    return found


if __name__ == "__main__":
    sys.exit(main())
