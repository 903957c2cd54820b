"""state.json of a fleet's folder: its spec, its ports and the processes it started.

Written atomically after every start, so that `down` finds whatever an interrupted `up` has started.
"""

import contextlib
import fcntl
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from hack.fleet.process import Identity
from hack.fleet.spec import FleetSpec

_FIRST_PORT, _LAST_PORT, _BLOCK = 20000, 31900, 100
"""Below the range that outgoing connections come from (32768 and up on Linux): nothing sits there by chance."""


class FleetError(Exception):
    """Something a user of the fleet can act upon."""


class ProcessRecord(msgspec.Struct):
    identity: Identity
    argv: list[str]
    started_at: float
    """Unix seconds."""
    killed: bool = False
    """Ended by a verb: not a crash."""
    log_offset: int = 0
    """Where this run's output begins in the log, bytes."""


class State(msgspec.Struct):
    spec: FleetSpec
    ports: dict[str, int] = {}
    processes: dict[str, ProcessRecord] = {}
    token: str = ""
    """Secret of the link proxy's control port."""

    def port(self, name: str) -> int:
        """The fleet's port of that name: the same one for as long as the fleet's folder lives."""
        if name not in self.ports:
            if len(self.ports) % _BLOCK == 0:
                self.ports[name] = _free_block()
            else:
                self.ports[name] = next(reversed(self.ports.values())) + 1
        return self.ports[name]


def load(folder: Path) -> State | None:
    """The state of the fleet in `folder`, or None when there is none. Raises FleetError on an unreadable file."""
    try:
        return msgspec.json.decode((folder / "state.json").read_bytes(), type=State)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise FleetError(
            f"{folder}/state.json is not readable ({error}); if no fleet runs there, remove the folder"
        ) from error


def save(folder: Path, state: State) -> None:
    draft = folder / "state.json.new"
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(state)))
    draft.chmod(0o600)
    draft.rename(folder / "state.json")


@contextlib.contextmanager
def locked(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """One changing verb at a time per fleet; the lock dies with its holder."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another command is working on this fleet: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        os.set_inheritable(file.fileno(), False)
        yield


def now() -> float:
    return time.time()


def _free_block() -> int:
    """The first of _BLOCK neighbouring free ports, at random so that fleets started together do not meet."""
    for _ in range(200):
        first = random.randrange(_FIRST_PORT, _LAST_PORT, _BLOCK)  # noqa: S311
        if all(_is_free(port) for port in range(first, first + _BLOCK)):
            return first
    raise FleetError(f"no {_BLOCK} neighbouring free ports between {_FIRST_PORT} and {_LAST_PORT}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
