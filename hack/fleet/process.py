"""Operating-system processes that outlive the command that started them.

A process is known by pid, start time and command line together, so that a pid taken over by somebody else's process
is never signalled.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

_children: dict[int, subprocess.Popen[bytes]] = {}
"""Processes started by this very Python process: they must be reaped here."""


class Identity(msgspec.Struct, frozen=True):
    pid: int
    start: str
    """Start time as the system tells it (Linux: clock ticks since boot)."""
    command: str


def spawn(argv: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path) -> Identity:
    """Starts a detached process in its own session and process group, output appended to `log`.

    Raises OSError when the program cannot be executed.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
        )
    _children[child.pid] = child
    # Right after exec the kernel still shows an empty command line for a moment.
    deadline = time.monotonic() + 1.0
    while (look := _look(child.pid)) is not None and time.monotonic() < deadline:
        if look[0].command == " ".join(argv):
            return look[0]
        time.sleep(0.001)
    # Gone already: an identity that matches nothing.
    return look[0] if look is not None else Identity(child.pid, "", " ".join(argv))


def is_alive(identity: Identity) -> bool:
    """Whether exactly this process still exists (stopped counts, a zombie does not)."""
    return state_of(identity) in ("running", "stopped")


def state_of(identity: Identity) -> str:
    """`running`, `stopped` (SIGSTOP) or `gone`."""
    look = _look(identity.pid)
    if look is not None and look[1] in "ZX" and (child := _children.pop(identity.pid, None)) is not None:
        child.wait()  # reaped, so that its pid is free again
    if look is None or look[1] in "ZX" or not _same(look[0], identity):
        return "gone"
    return "stopped" if look[1] in "Tt" else "running"


def send(identity: Identity, number: signal.Signals) -> bool:
    """Signals the process and what it started; False when it is gone."""
    if not is_alive(identity):
        return False
    try:
        # It leads its own process group (start_new_session), so pid == pgid.
        os.killpg(identity.pid, number)
    except ProcessLookupError:
        return False
    return True


def wait_gone(identity: Identity, seconds: float) -> bool:
    """Until the process and all of its group are gone, so that their ports are free. False after `seconds`."""
    deadline = time.monotonic() + seconds
    while is_alive(identity) or _group(identity.pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def end(identity: Identity, grace_seconds: float) -> None:
    """SIGTERM, and SIGKILL when that did not help; a stopped process is continued so that it can obey."""
    if send(identity, signal.SIGTERM):
        send(identity, signal.SIGCONT)
        if not wait_gone(identity, grace_seconds):
            send(identity, signal.SIGKILL)
            wait_gone(identity, 10.0)
    sweep(identity)


def sweep(identity: Identity) -> None:
    """Kills what a loop that is gone has left running: processes of its group whose command is the end of its own."""
    if is_alive(identity):
        return
    for pid in _group(identity.pid):
        look = _look(pid)
        if look is not None and look[0].command and identity.command.endswith(f" {look[0].command}"):
            os.kill(pid, signal.SIGKILL)
            wait_gone(look[0], 10.0)


def _same(found: Identity, identity: Identity) -> bool:
    # While it exits, a process has no command line any more.
    return (found.pid, found.start) == (identity.pid, identity.start) and found.command in ("", identity.command)


def _group(leader: int) -> list[int]:
    """The live processes of a process group (Linux; elsewhere the leader stands for all)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == leader and fields[0] not in "ZX":
            found.append(int(stat.parent.name))
    return found


def _look(pid: int) -> tuple[Identity, str] | None:
    """(identity, one-letter state) of whatever has this pid now."""
    proc = Path(f"/proc/{pid}")
    if Path("/proc/self/stat").exists():
        try:
            # The second field is the program's name in parentheses and may hold spaces.
            fields = (proc / "stat").read_text().rpartition(")")[2].split()
            command = (proc / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return None
        return Identity(pid, fields[19], command), fields[0]
    listed = subprocess.run(
        ["ps", "-o", "stat=,lstart=,command=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.split()
    if len(listed) < 7:
        return None
    return Identity(pid, " ".join(listed[1:6]), " ".join(listed[6:])), listed[0][0]
