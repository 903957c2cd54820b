"""Builds the fleet's third-party programs from their pinned Go modules into the cache.

`go install pkg@version` refuses modules with replace lines, so each program is the dependency of a tiny module that
is made in the cache at build time. Two builds at once wait for each other (a lock file); one that is killed half-way
leaves a work folder that the next one removes, never a half-filled program folder (the folder is renamed in place).
"""

import contextlib
import fcntl
import functools
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from hack.fleet.toolchain import Say, find_go
from hack.fleet.versions import PROGRAMS, Program, Recipe

HEARTBEAT_SECONDS = 10.0
"""How often a running build says that it is alive."""


class BuildError(Exception):
    """A program could not be built; the message carries the end of the build's log."""


def cache_folder() -> Path:
    """`${XDG_CACHE_HOME:-~/.cache}/muster`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster"


def ensure_built(say: Say, programs: Iterable[Program] = PROGRAMS, cache: Path | None = None) -> dict[str, Path]:
    """Builds what the cache lacks and returns every binary's path by its name.

    Raises BuildError, or ToolchainError when there is no Go.
    """
    cache = cache or cache_folder()
    programs = tuple(programs)
    if missing := [p for p in programs if not _is_built(cache, p)]:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / "build.lock", say) as lock:
            missing = [p for p in missing if not _is_built(cache, p)]  # the holder of the lock may have built it
            go = find_go(say) if missing else None
            for number, program in enumerate(missing, start=1):
                assert go is not None
                _build(go, program, cache, lock, _prefixed(say, f"[{number}/{len(missing)}] {program.key}"))
    return {name: cache / p.key / name for p in programs for name in p.binaries}


def assets_folder(program: Program, cache: Path | None = None) -> Path:
    """Where a built program's assets (manifests) lie."""
    return (cache or cache_folder()) / program.key / "assets"


def stamp(program: Program) -> dict[str, Any]:
    """What a built folder was made from; another stamp means another build."""
    found: dict[str, Any] = {
        "module": program.reference,
        "checksum": program.checksum,
        "binaries": program.binaries,
        "ldflags": list(program.ldflags),
    }
    return found | ({"assets": program.assets} if program.assets else {})


def published_replaces(go_mod: str, kubernetes_version: str) -> str:
    """The text of Kubernetes' go.mod with each staging folder replaced by the version published for it.

    `k8s.io/api => ./staging/src/k8s.io/api` becomes `k8s.io/api => k8s.io/api v0.36.3` for 1.36.3. The rest,
    the `godebug` line among it, stays: only the main module's counts.
    """
    published = "v0." + kubernetes_version.partition(".")[2]
    text = re.sub(r"=> \./staging/src/(k8s\.io/[\w.-]+)", rf"=> \1 {published}", go_mod)
    return re.sub(r"^module .*$", "module muster.local/kubernetes", text, count=1, flags=re.MULTILINE)


def _is_built(cache: Path, program: Program) -> bool:
    folder = cache / program.key
    try:
        made_from = json.loads((folder / "stamp.json").read_text())
    except (OSError, ValueError):
        return False
    return made_from == stamp(program) and all(os.access(folder / name, os.X_OK) for name in program.binaries)


def _build(go: Path, program: Program, cache: Path, lock: int, say: Say) -> None:
    work = cache / "work" / program.key
    shutil.rmtree(work, ignore_errors=True)  # left by a build that was killed; we hold the lock
    output = work / "out"
    output.mkdir(parents=True)
    log = cache / f"{program.key}.log"
    log.unlink(missing_ok=True)
    say("downloading the module")
    source = Path(_download(go, program)["Dir"])
    say("resolving dependencies")
    run = functools.partial(_run, folder=work, log=log, lock=lock, say=say)
    _write_module(program, source, work, lambda *arguments: run([str(go), *arguments]))
    say(f"compiling {', '.join(program.binaries)}")
    ldflags = " ".join(("-s", "-w", *program.ldflags))
    for name, package in _build_steps(program):
        target = str(output) + "/" if name is None else str(output / name)
        run([str(go), "build", "-v", "-p", _jobs(), "-ldflags", ldflags, "-o", target, *package])
    if program.assets:
        # The module cache is read-only, files included; a copy that keeps those modes could not be replaced.
        shutil.copytree(source / program.assets, output / "assets", copy_function=shutil.copyfile)
        for folder in (output / "assets", *(output / "assets").rglob("*/")):
            folder.chmod(0o755)
    (output / "stamp.json").write_text(json.dumps(stamp(program), indent=1))
    folder = cache / program.key
    shutil.rmtree(folder, ignore_errors=True)
    output.rename(folder)
    shutil.rmtree(work)
    say("built")


def _build_steps(program: Program) -> list[tuple[str | None, list[str]]]:
    """(file name or None for the packages' own names, packages): one `go build` when the names agree."""
    if all(package.rsplit("/", 1)[-1] == name for name, package in program.binaries.items()):
        return [(None, list(program.binaries.values()))]
    return [(name, [package]) for name, package in program.binaries.items()]


def _write_module(program: Program, source: Path, work: Path, run_go: Callable[..., None]) -> None:
    sums = f"{program.module} v{program.version} {program.checksum}\n"
    if program.recipe is Recipe.KUBERNETES:
        text = published_replaces((source / "go.mod").read_text(), program.version)
        (work / "go.mod").write_text(text)
        (work / "go.sum").write_text((source / "go.sum").read_text() + sums)
        run_go("mod", "edit", f"-require={program.reference}")
    else:
        (work / "go.mod").write_text(f"module muster.local/{program.name}\n")
        (work / "go.sum").write_text(sums)
        run_go("get", program.reference)


def _download(go: Path, program: Program) -> dict[str, str]:
    done = subprocess.run(
        [str(go), "mod", "download", "-json", program.reference],
        capture_output=True,
        text=True,
        env=_environment(),
        check=False,
    )
    try:
        answer: dict[str, str] = json.loads(done.stdout)
    except ValueError:
        answer = {}
    if done.returncode != 0 or "Dir" not in answer:
        reason = answer.get("Error") or done.stderr.strip()
        raise BuildError(f"cannot download {program.reference}: {reason}")
    if answer.get("Sum") != program.checksum:
        raise BuildError(
            f"{program.reference} has checksum {answer.get('Sum')}, hack/fleet/versions.py pins {program.checksum}"
        )
    return answer


def _run(command: list[str], folder: Path, log: Path, lock: int, say: Say) -> None:
    """Runs a Go command, its output in `log`, with a heartbeat.

    It inherits the lock: if we are killed and it goes on, no other build may begin in its folder.
    """
    with log.open("ab") as sink:
        child = subprocess.Popen(
            command, cwd=folder, stdout=sink, stderr=sink, stdin=subprocess.DEVNULL, env=_environment(), pass_fds=[lock]
        )
        try:
            while True:
                try:
                    code = child.wait(HEARTBEAT_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    lines = log.read_text(errors="replace").splitlines()
                    say(f"working, {len(lines)} packages, last {lines[-1] if lines else '-'}")
        finally:
            if child.poll() is None:
                child.terminate()
                child.wait()
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise BuildError(f"`{' '.join(command[:2])}` for {folder.name} exited with {code}; end of {log}:\n{tail}")


def _environment() -> dict[str, str]:
    return os.environ | {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=mod -trimpath -buildvcs=false",
        "GOWORK": "off",
        "GOTOOLCHAIN": "local",
    }


def _jobs() -> str:
    # The largest compile takes 2 GiB: more jobs than four would not help a laptop.
    return str(max(1, min(4, os.cpu_count() or 1)))


def _prefixed(say: Say, prefix: str) -> Say:
    started = time.monotonic()
    return lambda text: say(f"{prefix} {time.monotonic() - started:5.0f}s  {text}")


@contextlib.contextmanager
def _locked(path: Path, say: Say) -> Iterator[int]:
    """An exclusive lock that dies with the processes that hold its file descriptor, which is yielded."""
    with path.open("a") as file:
        waited = 0.0
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if waited % HEARTBEAT_SECONDS == 0:
                    say(f"another build holds {path}: waiting, {waited:.0f}s")
                time.sleep(1)
                waited += 1
        yield file.fileno()
