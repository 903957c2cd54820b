"""`python -m hack.fleet`: a hub and members on this machine. With FLEET=kind in the environment: on kind."""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from hack.fleet import layout
from hack.fleet.build import BuildError, ensure_built
from hack.fleet.fleet import Fleet
from hack.fleet.rest import RestError
from hack.fleet.spec import DIALECTS, OPERATORS, FleetSpec, NodeShape, SpecError, default_members
from hack.fleet.state import FleetError
from hack.fleet.toolchain import ToolchainError
from hack.fleet.up import attach, down, up


def main(arguments: list[str] | None = None) -> int:
    if os.environ.get("FLEET", "local") == "kind":
        from hack.kind.__main__ import main as kind  # noqa: PLC0415

        return kind(arguments)
    options = _parser().parse_args(arguments)
    options.folder = Path(options.dir).resolve() if options.dir else layout.default_folder(options.name)
    try:
        code: int = options.run(options)
        return code
    except (FleetError, SpecError, BuildError, ToolchainError, RestError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; `up` continues, `down` ends what has been started", file=sys.stderr)
        return 130


def _say(text: str) -> None:
    print(text, flush=True)


def _up(options: argparse.Namespace) -> int:
    began = time.monotonic()
    spec = FleetSpec(
        members=_members(options),
        without=frozenset(filter(None, ",".join(options.without).split(","))),
        direct=options.direct,
        audit=not options.no_audit,
    )
    up(options.folder, spec, _say)
    _say(f"the fleet is up after {time.monotonic() - began:.1f}s, in {options.folder}")
    chosen = f"--dir {options.dir} " if options.dir else f"--name {options.name} " if options.name != "default" else ""
    _say(f'  export KUBECONFIG="$(python -m hack.fleet {chosen}kubeconfig hub)"')
    return 0


def _members(options: argparse.Namespace) -> tuple:  # type: ignore[type-arg]
    shape = NodeShape(count=options.nodes, cpu=options.cpu, memory=options.memory, gpus=options.gpus)
    members = {
        m.name: msgspec.structs.replace(m, operator=options.operator, dialect=options.dialect, nodes=(shape,))
        for m in default_members(options.members)
    }
    for name, _, settings in (text.partition(":") for text in options.member):
        if name not in members:
            raise SpecError(f"--member {name}: there are {', '.join(members)}")
        changes: dict[str, Any] = dict(pair.split("=", 1) for pair in settings.split(",") if "=" in pair)
        if not changes or not changes.keys() <= {"operator", "dialect", "mode", "standby"}:
            raise SpecError(f"--member {name}:{settings}: expected some of operator=, dialect=, mode=, standby=true")
        if "standby" in changes:
            changes["standby"] = changes["standby"] == "true"
        members[name] = msgspec.structs.replace(members[name], **changes)
    return tuple(members.values())


def _down(options: argparse.Namespace) -> int:
    down(options.folder, _say, keep=options.keep)
    return 0


def _status(options: argparse.Namespace) -> int:
    """Prints a line per process; 1 when one has crashed."""
    supervisor = attach(options.folder)
    crashed = 0
    for line in supervisor.status():
        notes = f"not ready: {line.not_ready}" if line.not_ready else ""
        age = f"{line.seconds:.0f}s" if line.seconds else ""
        _say(f"{line.name:32} {line.state:12} {line.pid or '':>8} {age:>8}  {notes}".rstrip())
        if line.log_tail:
            crashed += 1
            _say(line.log_tail)
    return 1 if crashed else 0


def _kubeconfig(options: argparse.Namespace) -> int:
    fleet = Fleet.attach(options.folder)
    if options.cluster not in fleet.clusters:
        raise FleetError(f"no cluster {options.cluster!r}; there are {', '.join(fleet.clusters)}")
    path = fleet.clusters[options.cluster].kubeconfig_of(options.identity)
    if not path.exists():
        raise FleetError(f"no identity {options.identity!r} in {options.cluster}; see {path.parent}")
    print(path)
    return 0


def _process_verb(options: argparse.Namespace) -> int:
    fleet = Fleet.attach(options.folder)
    for name in options.process:
        if name not in fleet.processes:
            raise FleetError(f"no process {name!r}; there are:\n  " + "\n  ".join(fleet.processes))
        getattr(fleet.processes[name], options.verb)()
    return 0


def _link_verb(options: argparse.Namespace) -> int:
    fleet = Fleet.attach(options.folder)
    getattr(fleet, options.verb)(options.client, options.to)
    return 0


def _log(options: argparse.Namespace) -> int:
    fleet = Fleet.attach(options.folder)
    print(fleet.processes[options.process].log_tail(options.lines))
    return 0


def _nodes_add(options: argparse.Namespace) -> int:
    fleet = Fleet.attach(options.folder)
    fleet.spec.member(options.member)
    shape = NodeShape(
        count=options.count,
        cpu=options.cpu,
        memory=options.memory,
        gpus=options.gpus,
        labels=dict(pair.split("=", 1) for pair in options.label),
        taints=tuple(options.taint),
        prefix=options.prefix,
    )
    made = fleet.members[options.member].add_nodes(shape)
    _say(f"{len(made)} nodes: {', '.join(made[:5])}{', ...' if len(made) > 5 else ''}")
    return 0


def _build(_: argparse.Namespace) -> int:
    for name, path in ensure_built(_say).items():
        _say(f"{name:26} {path}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hack.fleet", description=__doc__)
    parser.add_argument("--name", default="default", help="which fleet (its folder lies in the state folder)")
    parser.add_argument("--dir", help="the fleet's folder, instead of --name")
    verbs = parser.add_subparsers(dest="verb", required=True)

    add = verbs.add_parser("up", help="bring the fleet up, or start what is missing")
    add.add_argument("--members", type=int, default=2)
    add.add_argument("--operator", choices=OPERATORS, default="real")
    add.add_argument("--dialect", choices=DIALECTS, default="training-operator")
    add.add_argument(
        "--member",
        action="append",
        default=[],
        metavar="NAME:operator=X,dialect=Y,mode=managed,standby=true",
        help="for one member only",
    )
    add.add_argument(
        "--without", action="append", default=[], metavar="extender,dispatcher,operator", help="leave these out"
    )
    add.add_argument("--direct", action="store_true", help="no link proxy: faster, but nothing can be cut")
    add.add_argument("--no-audit", action="store_true", help="no audit logs")
    add.add_argument("--nodes", type=int, default=3, help="per member, at the first up")
    _add_shape(add)
    add.set_defaults(run=_up)

    add = verbs.add_parser("down", help="end what this fleet has started, and remove its folder")
    add.add_argument("--keep", action="store_true", help="keep the folder: logs and etcd's data")
    add.set_defaults(run=_down)

    add = verbs.add_parser("status", help="a line per process; exit code 1 when one has crashed")
    add.set_defaults(run=_status)

    add = verbs.add_parser("kubeconfig", help="print the path of a cluster's kubeconfig")
    add.add_argument("cluster", help="hub, member1, ...")
    add.add_argument("--identity", default="admin")
    add.set_defaults(run=_kubeconfig)

    for verb, text in (
        ("start", "start what does not run, and wait until it is ready"),
        ("kill", "SIGKILL"),
        ("stop", "SIGSTOP"),
        ("cont", "SIGCONT"),
        ("restart", "end, start, wait until ready"),
    ):
        add = verbs.add_parser(verb, help=text)
        add.add_argument("process", nargs="+", help="such as member1/extender")
        add.set_defaults(run=_process_verb)

    for verb, text in (
        ("cut", "break a process's connections and refuse new ones"),
        ("hang", "let nothing pass on a process's connections"),
        ("heal", "undo cut and hang"),
    ):
        add = verbs.add_parser(verb, help=text)
        add.add_argument("client", nargs="?" if verb == "heal" else None, default="", help="such as hub/dispatcher")
        add.add_argument("--to", default="", help="only towards hub, member1 or extender")
        add.set_defaults(run=_link_verb)

    add = verbs.add_parser("log", help="the end of a process's log")
    add.add_argument("process")
    add.add_argument("--lines", type=int, default=30)
    add.set_defaults(run=_log)

    nodes = verbs.add_parser("nodes", help="simulated nodes").add_subparsers(dest="nodes_verb", required=True)
    add = nodes.add_parser("add")
    add.add_argument("member")
    add.add_argument("--count", type=int, default=1)
    add.add_argument("--label", action="append", default=[], metavar="KEY=VALUE")
    add.add_argument("--taint", action="append", default=[], metavar="KEY=VALUE:EFFECT")
    add.add_argument("--prefix", default="", help="of the nodes' names")
    _add_shape(add)
    add.set_defaults(run=_nodes_add)

    add = verbs.add_parser("build", help="build the third-party programs and print where they are")
    add.set_defaults(run=_build)
    return parser


def _add_shape(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cpu", default="8")
    parser.add_argument("--memory", default="32Gi")
    parser.add_argument("--gpus", type=int, default=8)


if __name__ == "__main__":
    sys.exit(main())
