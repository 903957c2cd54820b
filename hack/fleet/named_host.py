"""Runs a program under a host name of its own: `python -m hack.fleet.named_host NAME PROGRAM [ARGUMENT...]`.

kube-scheduler has no option for its identity in the Lease: it is `<host name>_<uuid>`. Two of them on one machine, each
with an extender beside it, are told apart as on two machines. Linux only (a UTS namespace); without root, where user
namespaces are allowed.
"""

import ctypes
import errno
import os
import socket
import sys
from pathlib import Path

_NEW_UTS, _NEW_USER = 0x04000000, 0x10000000


def main(arguments: list[str]) -> int:
    """Does not return when the program could be started."""
    if len(arguments) < 2:
        print("usage: python -m hack.fleet.named_host NAME PROGRAM [ARGUMENT...]", file=sys.stderr)
        return 2
    name, *program = arguments
    try:
        _own_namespace()
        socket.sethostname(name)
        os.execv(program[0], program)  # noqa: S606
    except OSError as error:
        hint = "; run as root, or allow user namespaces" if isinstance(error, PermissionError) else ""
        print(f"{program[0]} under the host name {name}: {error}{hint}", file=sys.stderr)
    return 1


def _own_namespace() -> None:
    """Raises OSError."""
    try:
        _unshare(_NEW_UTS)
    except PermissionError:
        user, group = os.getuid(), os.getgid()
        _unshare(_NEW_USER | _NEW_UTS)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def _unshare(flags: int) -> None:
    if not sys.platform.startswith("linux"):
        raise OSError(errno.ENOSYS, "only Linux has UTS namespaces")
    if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
