"""`python -m hack.bench`: progress and the table on stderr, JSON on stdout (or in --output)."""

import argparse
import json
import shutil
import signal
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from hack.bench import measure, report
from hack.bench.rig import Rig
from hack.bench.runner import RunError, run_all
from hack.bench.scenario import ScenarioError, check, parse_nodes, parse_shapes
from hack.fleet.build import BuildError
from hack.fleet.state import FleetError
from hack.fleet.toolchain import ToolchainError

QUICK = {"nodes": "200", "shapes": "2x200,20x20", "rounds": 3}


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.quick:
        for name, value in QUICK.items():
            setattr(options, name, value)
    # What has been started is ended on the way out, also when a terminal or a CI job ends us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(options.dir).resolve() if options.dir else Path(tempfile.mkdtemp(prefix="muster-bench-"))
    try:
        sizes, shapes = parse_nodes(options.nodes), parse_shapes(options.shapes)
        check(sizes, shapes)
        host = measure.host() | {"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), "rounds": options.rounds}
        with Rig.running(folder, _say) as rig:
            results = run_all(rig, sizes, shapes, options.rounds, _say)
    except (ScenarioError, FleetError, BuildError, ToolchainError, RunError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if not options.dir:
        shutil.rmtree(folder, ignore_errors=True)
    _say("\n" + report.table(results))
    text = json.dumps(report.document(results, host), indent=1)
    if options.output:
        Path(options.output).write_text(text + "\n")
    else:
        print(text)
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hack.bench",
        description="Seconds from release to last Binding: gangs by muster beside the stock scheduler without gangs, "
        "interleaved, on a real API server.",
    )
    add = parser.add_argument
    add("--nodes", default="200,1000,5000", help="numbers of nodes")
    add("--shapes", default="4x500,100x20", help="gangs x pods of each load")
    add("--rounds", type=int, default=5)
    add("--quick", action="store_true", help=f"a small load: {QUICK}")
    add("--dir", help="the fleet's folder, kept afterwards for its logs (default: a temporary one)")
    add("--output", metavar="FILE", help="JSON goes there instead of stdout")
    return parser


if __name__ == "__main__":
    sys.exit(main())
