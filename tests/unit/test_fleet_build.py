"""How the fleet's programs are built: from pinned modules, once, whatever happens in between."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hack.fleet import build
from hack.fleet.build import BuildError, ensure_built, published_replaces
from hack.fleet.toolchain import parse_version
from hack.fleet.versions import ETCD, PROGRAMS, Program

TOY = Program(
    name="toy",
    module="example.test/toy",
    version="1.2.3",
    checksum="h1:right=",
    binaries={"toy": "example.test/toy/cmd/toy"},
    assets="manifests",
)

FAKE_GO = """#!/bin/sh
# Plays the few commands of go that a build uses. Counts compilations; waits before one while $TOY/slow exists.
case "$1 $2" in
"env GOVERSION") echo go1.99.0 ;;
"mod download") echo '{"Dir": "'$TOY/module'", "Sum": "'$(cat $TOY/sum)'"}' ;;
"get "*) ;;
"build "*)
    echo compiled >> $TOY/compilations
    while [ -e $TOY/slow ]; do sleep 0.05; done
    while [ "$1" != -o ]; do shift; done
    [ -e $TOY/broken ] && { echo 'toy.go:1: syntax error'; exit 1; }
    echo binary > "$2/toy"; chmod +x "$2/toy" ;;
esac
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a fake go on PATH; `sum`, `slow` and `broken` in it steer the fake."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "go").write_text(FAKE_GO)
    (tmp_path / "bin" / "go").chmod(0o755)
    (tmp_path / "module" / "manifests" / "crds").mkdir(parents=True)
    (tmp_path / "module" / "manifests" / "crds" / "a.yaml").write_text("kind: A")
    (tmp_path / "sum").write_text(TOY.checksum)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("TOY", str(tmp_path))
    return tmp_path


def compilations(toy: Path) -> int:
    path = toy / "compilations"
    return len(path.read_text().splitlines()) if path.exists() else 0


def wait_until_compiling(toy: Path, times: int = 1) -> None:
    deadline = time.monotonic() + 10
    while compilations(toy) < times:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_program_is_built_once_and_its_assets_lie_beside_it(toy: Path) -> None:
    said: list[str] = []
    paths = ensure_built(said.append, [TOY], toy / "cache")
    assert paths == {"toy": toy / "cache" / "toy-1.2.3" / "toy"}
    assert paths["toy"].read_text() == "binary\n"
    assert (build.assets_folder(TOY, toy / "cache") / "crds" / "a.yaml").read_text() == "kind: A"
    assert any("compiling toy" in line for line in said)
    assert ensure_built(said.append, [TOY], toy / "cache") == paths
    assert compilations(toy) == 1


def test_another_recipe_for_the_same_version_is_another_build(toy: Path) -> None:
    ensure_built(lambda _: None, [TOY], toy / "cache")
    changed = Program(TOY.name, TOY.module, TOY.version, TOY.checksum, TOY.binaries, ldflags=("-X a=b",))
    ensure_built(lambda _: None, [changed], toy / "cache")
    assert compilations(toy) == 2


def test_a_module_with_another_checksum_is_refused_before_anything_is_compiled(toy: Path) -> None:
    (toy / "sum").write_text("h1:wrong=")
    with pytest.raises(BuildError, match=r"checksum h1:wrong=, .* pins h1:right="):
        ensure_built(lambda _: None, [TOY], toy / "cache")
    assert compilations(toy) == 0


def test_a_failed_compilation_shows_the_compilers_words_and_leaves_no_program(toy: Path) -> None:
    (toy / "broken").touch()
    with pytest.raises(BuildError, match=r"(?s)exited with 1.*syntax error"):
        ensure_built(lambda _: None, [TOY], toy / "cache")
    (toy / "broken").unlink()
    assert ensure_built(lambda _: None, [TOY], toy / "cache")["toy"].exists()


def test_two_builds_at_once_compile_once(toy: Path) -> None:
    (toy / "slow").touch()
    said: list[str] = []
    found: list[dict[str, Path]] = []
    threads = [
        threading.Thread(target=lambda: found.append(ensure_built(said.append, [TOY], toy / "cache"))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    wait_until_compiling(toy)
    deadline = time.monotonic() + 10
    while not any("another build holds" in line for line in said):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (toy / "slow").unlink()
    for thread in threads:
        thread.join(timeout=10)
    assert compilations(toy) == 1
    assert [paths["toy"].exists() for paths in found] == [True, True]


def test_a_build_killed_half_way_leaves_nothing_that_looks_built(toy: Path) -> None:
    (toy / "slow").touch()
    script = (
        "from tests.unit.test_fleet_build import TOY, ensure_built\n"
        "from pathlib import Path\n"
        f"ensure_built(print, [TOY], Path({str(toy / 'cache')!r}))"
    )
    killed = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    wait_until_compiling(toy)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not (toy / "cache" / "toy-1.2.3").exists()
    # The compiler it had started goes on and holds the lock: the next build waits for it, then builds anew.
    said: list[str] = []
    second = threading.Thread(target=lambda: ensure_built(said.append, [TOY], toy / "cache"))
    second.start()
    deadline = time.monotonic() + 10
    while not any("another build holds" in line for line in said):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert compilations(toy) == 1
    (toy / "slow").unlink()
    second.join(timeout=20)
    assert compilations(toy) == 2
    assert (toy / "cache" / "toy-1.2.3" / "toy").exists()


def test_kubernetes_staging_folders_become_published_versions_and_the_rest_stays() -> None:
    go_mod = (
        "module k8s.io/kubernetes\n\ngo 1.26.0\n\ngodebug default=go1.26\n\n"
        "require k8s.io/api v0.0.0\n\n"
        "replace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n"
        "\tk8s.io/cli-runtime => ./staging/src/k8s.io/cli-runtime\n)\n"
    )
    # 1.36.3 publishes its staging modules as 0.36.3.
    assert published_replaces(go_mod, "1.36.3") == (
        "module muster.local/kubernetes\n\ngo 1.26.0\n\ngodebug default=go1.26\n\n"
        "require k8s.io/api v0.0.0\n\n"
        "replace (\n\tk8s.io/api => k8s.io/api v0.36.3\n"
        "\tk8s.io/cli-runtime => k8s.io/cli-runtime v0.36.3\n)\n"
    )


def test_every_program_is_pinned_by_a_checksum_and_no_two_make_the_same_binary() -> None:
    assert all(program.checksum.startswith("h1:") for program in PROGRAMS)
    names = [name for program in PROGRAMS for name in program.binaries]
    assert len(names) == len(set(names))
    assert ETCD.reference == "go.etcd.io/etcd/server/v3@v3.6.16"


@pytest.mark.parametrize(
    ("text", "version"),
    [("go1.26.8", (1, 26)), ("v1.36.3", (1, 36)), ("go1.27rc1", (1, 27)), ("v1.27.3+k3s1", (1, 27)), ("", (0, 0))],
)
def test_versions_are_read_from_what_tools_print(text: str, version: tuple[int, int]) -> None:
    assert parse_version(text) == version
