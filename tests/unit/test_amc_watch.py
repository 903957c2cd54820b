"""`kubectl amc get -w`: the streams of all members in one, through ends, expired places and members that fail."""

import asyncio
import json
import shlex
from collections.abc import Callable

import pytest

from dispatcher.kubectl_amc import watch as watching
from dispatcher.kubectl_amc.get import run
from dispatcher.kubectl_amc.get_options import get_options
from kube.api.errors import Gone, Unreachable
from tests.unit.amc_fakes import FakeServer, World, job


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "RESUME_SECONDS", 0.0)
    monkeypatch.setattr(watching, "RETRY_SECONDS", 0.001)


class Watch:
    """A watch that runs while the block does."""

    def __init__(self, world: World, line: str) -> None:
        self.world = world
        self._line = line

    async def __aenter__(self) -> "Watch":
        self._task = asyncio.create_task(run(get_options(shlex.split(self._line)), self.world.session()))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                assert not self._task.done(), self._task
                await asyncio.sleep(0)

    def rows(self) -> list[list[str]]:
        return [line.split() for line in self.world.out.splitlines()]

    async def watched(self, *servers: FakeServer) -> None:
        await self.until(lambda: all(server.watches for server in servers))


@pytest.fixture
def one() -> FakeServer:
    return FakeServer({"pytorchjobs": [job("a", "Created")]})


@pytest.fixture
def two() -> FakeServer:
    return FakeServer()


async def test_what_is_there_then_what_changes_in_any_member(one: FakeServer, two: FakeServer):
    async with Watch(World(c1=one, c2=two), "pytorchjobs -M -w") as watch:
        await watch.watched(one, two)
        two.put("pytorchjobs", job("b", "Created"))
        await watch.until(lambda: len(watch.rows()) == 3)
        one.put("pytorchjobs", job("a", "Running"), "MODIFIED")
        await watch.until(lambda: len(watch.rows()) == 4)

    assert watch.rows() == [
        ["NAME", "CLUSTER", "STATE", "AGE", "ADOPTION"],
        ["a", "c1", "Created", "6m23s", "Y"],
        ["b", "c2", "Created", "6m23s", "Y"],
        ["a", "c1", "Running", "6m23s", "Y"],
    ]


async def test_columns_never_get_narrower(one: FakeServer):
    async with Watch(World(c1=one), "pytorchjobs -M -w") as watch:
        await watch.watched(one)
        one.put("pytorchjobs", job("a-much-longer-name", "Running"))
        one.put("pytorchjobs", job("b", "Created"))
        await watch.until(lambda: len(watch.rows()) == 4)

    long, short = watch.world.out.splitlines()[2:]
    assert long.index("c1") == short.index("c1") == len("a-much-longer-name   ")


async def test_a_watch_that_ends_goes_on_where_it_was(one: FakeServer):
    async with Watch(World(c1=one), "pytorchjobs -M -w") as watch:
        await watch.watched(one)
        one.put("pytorchjobs", job("b", "Created"))
        await watch.until(lambda: len(watch.rows()) == 3)
        version = one.version
        one.end_watches()
        await watch.watched(one)

    assert f"resourceVersion={version}" in one.asked[-1]
    assert len(watch.rows()) == 3  # nothing twice


async def test_bookmarks_move_the_place_and_print_nothing(one: FakeServer):
    async with Watch(World(c1=one), "pytorchjobs -M -w") as watch:
        await watch.watched(one)
        bookmark = {"cells": ["", None, None], "object": {"metadata": {"resourceVersion": "9000"}}}
        one.tell("BOOKMARK", {"kind": "Table", "rows": [bookmark]})
        one.end_watches()
        await watch.watched(one)

    assert "resourceVersion=9000" in one.asked[-1]
    assert len(watch.rows()) == 2


@pytest.mark.parametrize("form", ["answer", "event"])
async def test_after_an_expired_place_only_what_changed_is_printed(one: FakeServer, form: str):
    one.put("pytorchjobs", job("b", "Created"))
    async with Watch(World(c1=one), "pytorchjobs -M -w") as watch:
        await watch.watched(one)
        watches, one.watches = one.watches, []  # what happens now is missed
        one.put("pytorchjobs", job("b", "Running"))
        one.watches = watches
        if form == "answer":
            one.end_watches(Gone(410, "Expired", "too old resource version"))
        else:
            one.tell("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
        await watch.until(lambda: len(watch.rows()) == 4)

    assert watch.rows()[3][:3] == ["b", "c1", "Running"]
    assert watch.world.err == ""


async def test_a_member_that_fails_is_reported_once_and_taken_up_again(one: FakeServer, two: FakeServer):
    two.down = Unreachable("GET https://c2/api: connection refused")
    async with Watch(World(c1=one, c2=two), "pytorchjobs -M -w") as watch:
        await watch.watched(one)
        await watch.until(lambda: len(two.asked) > 5)
        assert watch.world.err == "cluster(c2): GET https://c2/api: connection refused\n"
        two.put("pytorchjobs", job("b", "Created"))
        two.down = None
        await watch.until(lambda: len(watch.rows()) == 3)

    assert {row[1] for row in watch.rows()[1:]} == {"c1", "c2"}


async def test_a_watch_that_breaks_is_reported_and_goes_on(one: FakeServer):
    async with Watch(World(c1=one), "pytorchjobs -M -w") as watch:
        await watch.watched(one)
        one.end_watches(Unreachable("reset"))
        await watch.watched(one)
        one.put("pytorchjobs", job("b", "Created"))
        await watch.until(lambda: len(watch.rows()) == 3)

    assert watch.world.err == "cluster(c1): reset\n"


async def test_a_name_is_waited_for(two: FakeServer):
    # A job comes to a member only once it is dispatched there.
    async with Watch(World(c2=two), "pytorchjob b -M -w") as watch:
        await watch.watched(two)
        assert "fieldSelector=metadata.name%3Db" in two.asked[-1]
        two.put("pytorchjobs", job("b", "Created"))
        await watch.until(lambda: len(watch.rows()) == 2)

    assert watch.world.err == ""


async def test_names(one: FakeServer):
    async with Watch(World(c1=one), "pytorchjobs -M -w -o name") as watch:
        await watch.until(lambda: watch.world.out)

    assert watch.world.out == "pytorchjob.kubeflow.org/a\n"


async def test_documents(one: FakeServer):
    async with Watch(World(c1=one), "pytorchjobs -M -w -o json") as watch:
        await watch.until(lambda: watch.world.out)

    assert json.loads(watch.world.out)["metadata"]["name"] == "a"


async def test_a_type_that_no_member_knows_ends_the_watch(one: FakeServer, two: FakeServer):
    world = World(c1=one, c2=two)

    assert await run(get_options(["foo", "-M", "-w"]), world.session()) == 1
    assert sorted(world.err.splitlines()) == [
        f'cluster({name}): the server doesn\'t have a resource type "foo"' for name in ("c1", "c2")
    ]
