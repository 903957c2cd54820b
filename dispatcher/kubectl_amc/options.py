"""The command line: kubectl's own flags, which kubectl refuses before a plugin's name, and the way verbs add theirs."""

import argparse
import re
from collections.abc import Callable, Sequence
from typing import NoReturn

import msgspec

from dispatcher.kubectl_amc.errors import UsageError

PROGRAM = "kubectl amc"


class ConnectionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the hub. "" and None: as the kubeconfig says."""

    kubeconfig: str = ""
    context: str = ""
    cluster: str = ""
    user: str = ""
    namespace: str = ""
    server: str = ""
    token: str = ""
    tls_server_name: str = ""
    certificate_authority: str = ""
    client_certificate: str = ""
    client_key: str = ""
    insecure_skip_tls_verify: bool = False
    impersonate_user: str = ""
    impersonate_groups: tuple[str, ...] = ()
    request_timeout: float | None = None
    """Seconds; None: the default of each call, 0: none."""
    verbosity: int = 0

    def __repr__(self) -> str:
        return f"ConnectionOptions(context={self.context!r})"


def seconds(text: str) -> float:
    """Value of kubectl's --request-timeout: seconds, or a Go duration such as 500ms, 10s, 1m30s. "0": no limit.

    Raises argparse.ArgumentTypeError.
    """
    if re.fullmatch(r"[0-9]+", text):
        return float(text)
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: give one such as 5s or 1m30s")
    factor = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
    return sum(float(number) * factor[unit] for number, unit in parts)


class Parser(argparse.ArgumentParser):
    """Raises UsageError instead of ending the process with code 2: kubectl's code is 1."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\nSee '{self.prog} --help' for usage.")


def connection_flags(parser: argparse.ArgumentParser) -> None:
    """The global flags of kubectl, under their names."""
    flags = parser.add_argument_group("the hub")
    flags.add_argument("-n", "--namespace", default="", help="namespace; default: the context's")
    flags.add_argument("--kubeconfig", default="", metavar="FILE", help="default: $KUBECONFIG, else ~/.kube/config")
    flags.add_argument("--context", default="", help="context of the kubeconfig")
    flags.add_argument("--cluster", default="", metavar="NAME", help="cluster of the kubeconfig that is the hub")
    flags.add_argument("--user", default="", help="user of the kubeconfig")
    flags.add_argument("-s", "--server", default="", metavar="URL", help="the hub's API server")
    flags.add_argument("--token", default="", help="bearer token for the hub")
    flags.add_argument("--tls-server-name", default="", metavar="NAME", help="name in the hub's certificate")
    flags.add_argument("--certificate-authority", default="", metavar="FILE", help="CA of the hub")
    flags.add_argument("--client-certificate", default="", metavar="FILE", help="client certificate for the hub")
    flags.add_argument("--client-key", default="", metavar="FILE", help="key of the client certificate")
    flags.add_argument("--insecure-skip-tls-verify", action="store_true", help="do not check the hub's certificate")
    flags.add_argument("--as", default="", dest="impersonate_user", metavar="USER", help="act as USER on the hub")
    flags.add_argument(
        "--as-group", action="append", default=[], dest="impersonate_groups", metavar="GROUP", help="may be repeated"
    )
    flags.add_argument(
        "--request-timeout", type=seconds, default=None, metavar="TIME", help="limit of one call, such as 5s; 0: none"
    )
    flags.add_argument("-v", "--v", type=int, default=0, dest="verbosity", metavar="LEVEL", help="6: log calls")


def connection_options(parsed: argparse.Namespace) -> ConnectionOptions:
    values = {name: getattr(parsed, name) for name in ConnectionOptions.__struct_fields__}
    return ConnectionOptions(**values | {"impersonate_groups": tuple(parsed.impersonate_groups)})


def verb_of(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The first argument that is neither a flag nor a connection flag's value, and all others in their order.

    "" if there is none.
    """
    flags = Parser(add_help=False)
    connection_flags(flags)
    with_value = {name for action in flags._actions if action.nargs is None for name in action.option_strings}  # noqa: SLF001 - argparse has no other list
    skip = False
    for place, argument in enumerate(arguments):
        if skip:
            skip = False
        elif argument in with_value:
            skip = True
        elif not argument.startswith("-"):
            return argument, [*arguments[:place], *arguments[place + 1 :]]
    return "", list(arguments)


def parse(
    verb: str, arguments: Sequence[str], description: str, flags: Callable[[argparse.ArgumentParser], None]
) -> argparse.Namespace:
    """The flags of a verb and of the connection, in any order with the arguments. Raises UsageError."""
    parser = Parser(prog=f"{PROGRAM} {verb}", description=description, allow_abbrev=False)
    flags(parser)
    connection_flags(parser)
    switches = {
        name
        for action in parser._actions  # noqa: SLF001
        if action.nargs == 0
        for name in action.option_strings
    }
    return parser.parse_intermixed_args(list(_plain_switches(arguments, switches)))


def _plain_switches(arguments: Sequence[str], switches: set[str]) -> list[str]:
    """`--watch=true` as `--watch`, `--watch=false` as nothing: pflag takes both, argparse neither."""
    plain = []
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name not in switches or not value:
            plain.append(argument)
        elif value.lower() in ("true", "1", "t"):
            plain.append(name)
        elif value.lower() not in ("false", "0", "f"):
            raise UsageError(f"{argument}: give true or false")
    return plain
