"""Processes, their record, the order of starting, and the links that can be cut."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from hack.fleet import graph, probes, process, proxy, state
from hack.fleet.components import Component
from hack.fleet.graph import Task
from hack.fleet.process import Identity
from hack.fleet.proxy import LinkConfig, ProxyConfig
from hack.fleet.spec import FleetSpec, default_members
from hack.fleet.state import FleetError, State
from hack.fleet.supervisor import Supervisor

SLEEP = [sys.executable, "-c", "import time; print('hello', flush=True); time.sleep(600)"]


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def runs(pid: int) -> bool:
    """Whether anything of it runs: it may be dead and not yet collected by init."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def supervisor(folder: Path, *components: Component) -> Supervisor:
    current = State(spec=FleetSpec(members=default_members(1)))
    state.save(folder, current)
    return Supervisor(folder, current, {c.name: c for c in components})


class TestNamedHost:
    def test_a_program_runs_under_its_own_host_name_and_this_machine_keeps_its(self) -> None:
        before = socket.gethostname()
        tell = [sys.executable, "-c", "import socket; print(socket.gethostname())"]
        command = [sys.executable, "-m", "hack.fleet.named_host", "control-plane-7", *tell]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout == "control-plane-7\n"
        assert socket.gethostname() == before

    def test_a_program_that_is_not_there_is_named(self) -> None:
        command = [sys.executable, "-m", "hack.fleet.named_host", "h", "/no/such/program"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "/no/such/program" in done.stderr


class TestProbes:
    def test_either_is_ready_when_one_is_and_else_says_why_none(self) -> None:
        yes, no, neither = (lambda: ""), (lambda: "no"), (lambda: "neither")
        assert probes.either(no, yes)() == ""
        assert probes.either(no, neither)() == "no; neither"


class TestProcesses:
    def test_a_process_runs_is_stopped_continues_and_is_gone_when_killed(self, tmp_path: Path) -> None:
        identity = process.spawn(SLEEP, tmp_path / "log", os.environ, tmp_path)
        assert process.state_of(identity) == "running"
        process.send(identity, signal.SIGSTOP)
        wait(lambda: process.state_of(identity) == "stopped")
        process.send(identity, signal.SIGCONT)
        wait(lambda: process.state_of(identity) == "running")
        process.send(identity, signal.SIGKILL)
        assert process.wait_gone(identity, 10)
        assert process.state_of(identity) == "gone"

    def test_a_stopped_process_can_be_ended(self, tmp_path: Path) -> None:
        identity = process.spawn(SLEEP, tmp_path / "log", os.environ, tmp_path)
        process.send(identity, signal.SIGSTOP)
        process.end(identity, 10)
        assert not process.is_alive(identity)

    def test_a_pid_that_was_taken_over_by_another_process_is_never_signalled(self, tmp_path: Path) -> None:
        identity = process.spawn(SLEEP, tmp_path / "log", os.environ, tmp_path)
        try:
            for stale in (
                Identity(identity.pid, "1", identity.command),  # the same program, started at another time
                Identity(identity.pid, identity.start, "etcd --data-dir=/x"),
            ):
                assert process.state_of(stale) == "gone"
                assert not process.send(stale, signal.SIGKILL)
                process.end(stale, 1)
            assert process.state_of(identity) == "running"
        finally:
            process.end(identity, 10)

    def test_what_a_process_has_started_ends_with_it(self, tmp_path: Path) -> None:
        script = "sleep 600 & echo $! > child; wait"
        identity = process.spawn(["/bin/sh", "-c", script], tmp_path / "log", os.environ, tmp_path)
        wait(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text().endswith("\n"))
        child = int((tmp_path / "child").read_text())
        process.end(identity, 10)
        assert not runs(child)

    def test_a_program_that_is_not_there_is_an_error_at_once(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            process.spawn(["/no/such/program"], tmp_path / "log", os.environ, tmp_path)


class TestSupervisor:
    def test_a_crash_is_told_from_a_kill_and_shows_the_end_of_the_log_of_its_last_run(self, tmp_path: Path) -> None:
        boss = supervisor(
            tmp_path,
            Component("a", SLEEP, probes.running),
            Component("b", [sys.executable, "-c", "raise SystemExit('no room')"], probes.running),
        )
        (tmp_path / "logs").mkdir()
        (tmp_path / "logs" / "b.log").write_text("from an earlier run\n")
        boss.start("a")
        boss.start("b")
        boss.kill("a")
        wait(lambda: not boss.is_running("b"))
        shown = {s.name: s for s in boss.status()}
        assert shown["a"].state == "killed"
        assert shown["b"].state == "crashed"
        assert "no room" in shown["b"].log_tail
        assert "earlier run" not in shown["b"].log_tail
        assert [s.name for s in boss.crashed()] == ["b"]

    def test_a_program_that_dies_while_starting_is_reported_with_its_words(self, tmp_path: Path) -> None:
        boss = supervisor(
            tmp_path, Component("b", [sys.executable, "-c", "raise SystemExit('bad flag')"], lambda: "not yet")
        )
        with pytest.raises(FleetError, match=r"(?s)b has ended while starting.*bad flag"):
            boss.start_and_wait("b")

    def test_a_program_that_does_not_get_ready_is_reported_with_the_probes_reason(self, tmp_path: Path) -> None:
        boss = supervisor(tmp_path, Component("a", SLEEP, lambda: "503 caches are not synced", timeout=0.2))
        try:
            with pytest.raises(FleetError, match="a is not ready: 503 caches are not synced"):
                boss.start_and_wait("a")
        finally:
            boss.end_all()

    def test_another_holder_of_the_fleet_sees_what_this_one_has_started(self, tmp_path: Path) -> None:
        component = Component("a", SLEEP, probes.running)
        first, second = supervisor(tmp_path, component), supervisor(tmp_path, component)
        try:
            assert first.start("a")
            assert not second.start("a")
            assert second.end_all() == ["a"]
            assert not first.is_running("a")
        finally:
            first.end_all()

    def test_a_kept_program_comes_back_when_it_exits_but_not_when_it_is_killed(self, tmp_path: Path) -> None:
        script = "echo run >> runs; [ $(wc -l < runs) -gt 1 ] && sleep 600; exit 3"
        boss = supervisor(tmp_path, Component("a", ["/bin/sh", "-c", script], probes.running, kept=True))
        boss.start("a")
        wait(lambda: (tmp_path / "runs").exists() and (tmp_path / "runs").read_text() == "run\nrun\n")
        assert boss.crashed() == []
        boss.kill("a")
        assert not boss.is_running("a")
        assert [s.state for s in boss.status()] == ["killed"]

    def test_what_a_killed_loop_has_left_running_is_ended_before_its_program_starts_again(self, tmp_path: Path) -> None:
        boss = supervisor(tmp_path, Component("a", ["/bin/sleep", "611"], probes.running, kept=True))

        def sleepers() -> list[int]:
            return [
                int(c.parent.name)
                for c in Path("/proc").glob("[0-9]*/cmdline")
                if c.read_bytes() == b"/bin/sleep\x00611\x00"
            ]

        try:
            boss.start("a")
            wait(lambda: len(sleepers()) == 1)
            [orphan] = sleepers()
            os.kill(boss.records()["a"].identity.pid, signal.SIGKILL)  # the loop alone
            wait(lambda: not boss.is_running("a"))
            assert runs(orphan)
            boss.start("a")
            assert not runs(orphan)
            wait(lambda: len(sleepers()) == 1)
            os.kill(boss.records()["a"].identity.pid, signal.SIGKILL)
            wait(lambda: not boss.is_running("a"))
        finally:
            boss.end_all()
        assert sleepers() == []

    def test_a_kept_program_that_only_exits_is_given_up_and_is_a_crash(self, tmp_path: Path) -> None:
        boss = supervisor(
            tmp_path, Component("a", ["/bin/sh", "-c", "echo bad config; exit 1"], lambda: "refused", kept=True)
        )
        with pytest.raises(FleetError, match=r"(?s)a has ended while starting.*bad config"):
            boss.start_and_wait("a")

    def test_a_changed_command_line_replaces_the_process(self, tmp_path: Path) -> None:
        boss = supervisor(tmp_path, Component("a", SLEEP, probes.running))
        try:
            boss.start("a")
            before = boss.records()["a"].identity
            boss.components = {"a": Component("a", [*SLEEP, "again"], probes.running)}
            assert boss.start("a")
            assert not process.is_alive(before)
            assert boss.records()["a"].argv[-1] == "again"
        finally:
            boss.end_all()

    def test_an_unknown_process_is_answered_with_those_there_are(self, tmp_path: Path) -> None:
        with pytest.raises(FleetError, match=r"(?s)no process 'b'.*  a"):
            supervisor(tmp_path, Component("a", SLEEP, probes.running)).start("b")


class TestState:
    def test_ports_are_neighbours_and_keep_their_names_over_a_restart(self, tmp_path: Path) -> None:
        current = State(spec=FleetSpec(members=default_members(1)))
        ports = [current.port(name) for name in ("a", "b", "c")]
        assert ports == [ports[0], ports[0] + 1, ports[0] + 2]
        state.save(tmp_path, current)
        again = state.load(tmp_path)
        assert again is not None
        assert [again.port(name) for name in ("a", "b", "c", "d")] == [*ports, ports[2] + 1]

    def test_a_fleet_with_more_ports_than_a_block_takes_a_second_one(self) -> None:
        current = State(spec=FleetSpec(members=default_members(1)))
        ports = [current.port(str(i)) for i in range(250)]
        assert len(set(ports)) == 250
        assert all(20000 <= port < 32000 for port in ports)

    def test_no_state_is_no_fleet_and_a_broken_one_is_an_error_with_advice(self, tmp_path: Path) -> None:
        assert state.load(tmp_path) is None
        (tmp_path / "state.json").write_text("{")
        with pytest.raises(FleetError, match="remove the folder"):
            state.load(tmp_path)


class TestGraph:
    def test_each_task_runs_once_and_after_those_it_waits_for(self) -> None:
        done: list[str] = []
        tasks = {
            "c": Task(lambda: done.append("c"), ("a", "b")),
            "b": Task(lambda: done.append("b"), ("a",)),
            "a": Task(lambda: done.append("a"), ("not here",)),
        }
        graph.run(tasks, lambda _: None)
        assert done == ["a", "b", "c"]

    def test_after_a_failure_nothing_new_begins_and_the_first_failure_is_raised(self) -> None:
        done: list[str] = []

        def fail() -> None:
            raise FleetError("etcd has ended")

        cancelled = threading.Event()
        tasks = {
            "a": Task(fail),
            "b": Task(lambda: done.append("b"), ("a",)),
            "slow": Task(lambda: done.append(f"slow {cancelled.wait(10)}")),
        }
        with pytest.raises(FleetError, match="etcd has ended"):
            graph.run(tasks, lambda _: None, cancelled.set)
        assert done == ["slow True"]  # it was told to give up, and did

    def test_a_cycle_is_an_error_and_not_a_hang(self) -> None:
        with pytest.raises(ValueError, match="a, b"):
            graph.run({"a": Task(lambda: None, ("b",)), "b": Task(lambda: None, ("a",))}, lambda _: None)

    def test_a_long_task_is_named_in_heartbeats(self) -> None:
        beats: list[list[str]] = []
        graph.run({"slow": Task(lambda: time.sleep(0.2))}, beats.append, heartbeat_seconds=0.05)
        assert beats[0] == ["slow"]


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        return
    finally:
        writer.close()


class Links:
    """The proxy in front of an echo server."""

    def __init__(self) -> None:
        self.control, self.listen, self.target = free_ports(3)

    async def __aenter__(self) -> "Links":
        self._server = await asyncio.start_server(echo, "127.0.0.1", self.target)
        config = ProxyConfig(self.control, "token", (LinkConfig("a>b", self.listen, self.target),))
        self._proxy = asyncio.create_task(proxy.serve(config))
        deadline = time.monotonic() + 5
        while True:
            try:
                assert (await self.ask(token="token"))["links"] == {"a>b": "open"}
                return self
            except ConnectionError:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)

    async def __aexit__(self, *_: object) -> None:
        self._proxy.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._proxy
        self._server.close()

    async def ask(self, **request: str) -> dict[str, object]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.control)
        writer.write(msgspec.json.encode(request) + b"\n")
        answer: dict[str, object] = msgspec.json.decode(await reader.readline())
        writer.close()
        return answer

    async def set(self, mode: str) -> None:
        assert await self.ask(token="token", link="a>b", mode=mode) == {"ok": True}

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.listen)


async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: bytes) -> bytes:
    writer.write(text)
    return await asyncio.wait_for(reader.readexactly(len(text)), 5)


class TestLinks:
    async def test_an_open_link_carries_everything_both_ways(self) -> None:
        async with Links() as links:
            reader, writer = await links.connect()
            megabytes = b"0123456789abcdef" * (1 << 18)
            assert await said(reader, writer, megabytes) == megabytes
            writer.write_eof()  # a half-closed connection still gets its answer
            assert await asyncio.wait_for(reader.read(), 5) == b""

    async def test_a_cut_link_resets_what_is_open_and_what_comes_until_it_is_healed(self) -> None:
        async with Links() as links:
            reader, writer = await links.connect()
            await said(reader, writer, b"before")
            await links.set("cut")
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(reader.readexactly(1), 5)
            reader, writer = await links.connect()
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await said(reader, writer, b"during")
            await links.set("open")
            reader, writer = await links.connect()
            assert await said(reader, writer, b"after") == b"after"

    async def test_a_hanging_link_keeps_connections_but_moves_nothing_until_it_is_healed(self) -> None:
        async with Links() as links:
            old_reader, old_writer = await links.connect()
            await said(old_reader, old_writer, b"before")
            await links.set("hang")
            new_reader, new_writer = await links.connect()
            old_writer.write(b"old")
            new_writer.write(b"new")
            for reader in (old_reader, new_reader):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(reader.readexactly(1), 0.3)
            await links.set("open")
            assert await asyncio.wait_for(old_reader.readexactly(3), 5) == b"old"
            assert await asyncio.wait_for(new_reader.readexactly(3), 5) == b"new"

    async def test_a_server_that_is_down_looks_down(self) -> None:
        async with Links() as links:
            links._server.close()
            reader, writer = await links.connect()
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await said(reader, writer, b"x")

    async def test_the_control_port_obeys_only_its_token_and_knows_only_its_links(self) -> None:
        async with Links() as links:
            assert await links.ask(token="guess", link="a>b", mode="cut") == {"error": "wrong token"}
            assert "no link" in str(await links.ask(token="token", link="a>c", mode="cut"))
            assert "no mode" in str(await links.ask(token="token", link="a>b", mode="slow"))
            reader, writer = await links.connect()
            assert await said(reader, writer, b"open") == b"open"
