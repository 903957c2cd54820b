"""Command line of the extender. Every wait has a name and an option; times are seconds."""

import argparse
import socket
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import msgspec

from extender.config import CoreConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    kubeconfig: str | None
    listen: tuple[str, int]
    metrics_listen: tuple[str, int]
    tls_cert: Path
    tls_key: Path
    client_ca: Path
    client_names: frozenset[str]
    tls_reload: float
    identity: str
    scheduler_lease: tuple[str, str] | None
    """(namespace, name); None: the scheduler has no leader election."""
    scheduler_identity: str
    scheduler_lease_poll: float
    lease_seconds: int
    lease_margin: float
    lease_renew: float
    lease_timeout: float
    hub_lease_poll: float
    filter_deadline: float
    bind_hold: float
    bind_post_timeout: float
    bind_concurrency: int
    recheck_timeout: float
    shared_nodes: bool
    api_timeout: float
    watch_timeout: float
    body_timeout: float
    max_body: int
    backlog: int
    report_interval: float
    drain_timeout: float
    log_level: str
    core: CoreConfig


def parse(arguments: Sequence[str]) -> Options:
    """Exits with code 2 and a message on stderr for arguments that cannot be."""
    parser = _parser()
    given = parser.parse_args(arguments)
    core = CoreConfig(**{field: getattr(given, f"core_{field}") for field in CoreConfig.__struct_fields__})
    if core.bind_answer_margin <= given.bind_post_timeout:
        parser.error("--bind-answer-margin must be above --bind-post-timeout, or no commit would pass the time fence")
    if given.bind_hold <= core.bind_answer_margin + core.bind_conflict_wait:
        parser.error("--bind-hold must be above --bind-answer-margin plus --bind-conflict-wait")
    if given.lease_seconds - given.lease_margin - given.lease_renew <= given.bind_post_timeout:
        parser.error("--lease-seconds less --lease-margin and --lease-renew must leave more than --bind-post-timeout")
    given.core = core
    given.identity = given.identity or f"{socket.gethostname()}:{given.listen[1]}"
    given.client_names = frozenset(given.client_name or ["system:kube-scheduler"])
    given.scheduler_identity = given.scheduler_identity or f"{socket.gethostname()}_"
    if not given.scheduler_leader_election:
        given.scheduler_lease = None
    return Options(**{field.name: getattr(given, field.name) for field in fields(Options)})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="muster-extender",
        description="Scheduler extender beside a stock kube-scheduler: whole gangs or nothing. Times are seconds.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--kubeconfig", help="of this cluster; without it the pod's service account is used")
    add("--listen", type=_address, default=("127.0.0.1", 8443), metavar="HOST:PORT", help="kube-scheduler's way in")
    add("--metrics-listen", type=_address, default=("127.0.0.1", 8444), metavar="HOST:PORT",
        help="plain HTTP: /healthz, /readyz, /metrics")  # fmt: skip
    add("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])

    tls = parser.add_argument_group("TLS").add_argument
    tls("--tls-cert", type=Path, required=True, help="serving certificate (PEM, chain)")
    tls("--tls-key", type=Path, required=True)
    tls("--client-ca", type=Path, required=True, help="signs kube-scheduler's client certificate")
    tls("--client-name", action="append", metavar="CN",
        help="of a client certificate that is served; may be repeated (default system:kube-scheduler)")  # fmt: skip
    tls("--tls-reload", type=_seconds, default=10.0, help="how often the files are looked at")

    leader = parser.add_argument_group("leadership").add_argument
    leader("--scheduler-leader-election", type=_boolean, default=True, metavar="true|false",
           help="false: the scheduler beside this extender runs alone, without a lease")  # fmt: skip
    leader("--scheduler-lease", type=_namespaced, default=("kube-system", "kube-scheduler"), metavar="NAMESPACE/NAME",
           help="lease of the scheduler beside this extender")  # fmt: skip
    leader("--scheduler-identity", metavar="HOLDER",
           help="that scheduler in the lease; a prefix if it ends in _ (default: host name and _)")  # fmt: skip
    leader("--scheduler-lease-poll", type=_seconds, default=0.5)
    leader("--identity", help="in the extender's own lease (default: host name and port)")
    leader("--lease-seconds", type=int, default=15, help="duration of the own lease")
    leader("--lease-margin", type=_seconds, default=5.0, help="decisions stop this long before it ends")
    leader("--lease-renew", type=_seconds, default=2.0)
    leader("--lease-timeout", type=_seconds, default=3.0, help="of one read or write of a lease")
    leader("--hub-lease-poll", type=_seconds, default=5.0)

    serve = parser.add_argument_group("answers").add_argument
    serve("--filter-deadline", type=_seconds, default=1.0,
          help="filter calls older than this get an error; below the scheduler's httpTimeout (2)")  # fmt: skip
    serve("--bind-hold", type=_seconds, default=72.0,
          help="longest bind call, commit included; below the scheduler's httpTimeout (75)")  # fmt: skip
    serve("--bind-post-timeout", type=_seconds, default=2.0, help="of one Binding; also the time fence")
    serve("--bind-concurrency", type=int, default=48, help="Bindings being posted at once")
    serve("--recheck-timeout", type=_seconds, default=2.0, help="of one live read before a commit")
    serve("--shared-nodes", type=_boolean, default=False, metavar="true|false",
          help="true: another scheduler, without this extender, binds pods onto the same nodes; "
          "commits look at the pods of their nodes")  # fmt: skip
    serve("--body-timeout", type=_seconds, default=5.0, help="for a request's body to arrive")
    serve("--max-body", type=int, default=64 << 20, help="bytes")
    serve("--backlog", type=int, default=4096, help="connections not yet accepted; above the largest gang")

    api = parser.add_argument_group("API server").add_argument
    api("--api-timeout", type=_seconds, default=10.0, help="of any other call")
    api("--watch-timeout", type=_seconds, default=60.0, help="life of one watch")
    api("--report-interval", type=_seconds, default=1.0, help="between two capacity reports at least")
    api("--drain-timeout", type=_seconds, default=10.0, help="for Bindings under way when asked to stop")

    decisions = parser.add_argument_group("decisions", "see extender/config.py").add_argument
    for name, default in zip(CoreConfig.__struct_fields__, msgspec.structs.astuple(CoreConfig()), strict=True):
        kind = str if isinstance(default, str) else int if isinstance(default, int) else _seconds
        decisions(
            f"--{name.replace('_', '-')}", dest=f"core_{name}", type=kind, default=default, help=f"default {default}"
        )
    return parser


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _namespaced(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not slash or not namespace or not name or "/" in name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAMESPACE/NAME")
    return namespace, name


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text == "true"
