"""python -m hack.operator --kubeconfig FILE [--dialect auto|training-operator|arena] [--pod-delay SECONDS] ..."""

import argparse
import asyncio
import logging
import signal
import sys
from random import Random

from aiohttp import web

from hack.operator.controller import Operator
from hack.operator.dialects import detect
from hack.operator.job import Dialect
from hack.operator.pods import Gang
from hack.operator.writer import Writer
from kube.api.client import HttpApi
from kube.api.clock import SystemClock
from kube.api.errors import ApiError


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hack.operator", description="Stand-in training operator of one member.")
    parser.add_argument("--kubeconfig", required=True, help="who to be, and where")
    parser.add_argument("--dialect", choices=["auto", "training-operator", "arena"], default="auto")
    parser.add_argument("--pod-delay", type=float, default=0.0, metavar="SECONDS", help="between two pods of a job")
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="pods of a job created at once")
    parser.add_argument("--seed", type=int, default=None, help="of the order in which roles are worked on")
    parser.add_argument("--gang", action="store_true", help="make PodGroups and label pods, as with the gang flag on")
    parser.add_argument(
        "--gang-scheduler-name", default="default-scheduler", metavar="NAME", help="for pods that name no scheduler"
    )
    parser.add_argument("--health-listen", default="", metavar="HOST:PORT", help="serves /healthz and /readyz")
    return parser


async def serve(options: argparse.Namespace) -> None:
    async with await HttpApi.from_kubeconfig(options.kubeconfig, user_agent="training-operator-standin") as api:
        dialect: Dialect = await detect(api) if options.dialect == "auto" else options.dialect
        logging.getLogger("operator").info("dialect %s", dialect)
        clock = SystemClock()
        operator = Operator(
            api,
            clock,
            Writer(api, clock, pod_delay=options.pod_delay, parallel=options.parallel),
            Random(options.seed),  # noqa: S311  order, not secrets
            dialect=dialect,
            gang=Gang(options.gang_scheduler_name) if options.gang else None,
        )
        if options.health_listen:
            await _listen(options.health_listen, operator)
        await operator.run()


async def _listen(address: str, operator: Operator) -> None:
    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def ready(_: web.Request) -> web.Response:
        return web.Response(text="ok") if operator.synced else web.Response(status=503, text="caches are not synced")

    app = web.Application()
    app.add_routes([web.get("/healthz", healthy), web.get("/readyz", ready)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    host, _, port = address.rpartition(":")
    await web.TCPSite(runner, host, int(port)).start()


async def until_stopped(options: argparse.Namespace) -> int:
    serving = asyncio.ensure_future(serve(options))
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, serving.cancel)
    try:
        await serving
    except asyncio.CancelledError:
        return 0
    except ApiError as error:
        print(f"operator: {error}", file=sys.stderr)
        return 1
    return 0


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    return asyncio.run(until_stopped(arguments().parse_args()))


if __name__ == "__main__":
    sys.exit(main())
