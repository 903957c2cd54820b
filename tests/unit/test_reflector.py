"""The reflector against scripted servers: whatever a watch does, the cache ends as the server is; no delete is lost."""

import asyncio
from itertools import pairwise
from random import Random
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kube.api.api import PODS
from kube.api.backoff import Backoff
from kube.api.errors import ApiError, Forbidden, Gone, NotFound, StatusError, TooManyRequests, Unreachable
from kube.api.reflector import Change, Reflector
from kube.objects.meta import ObjectMeta
from tests.simulation.clock import VirtualClock, run_virtual, until, virtual
from tests.unit.scripted_api import BREAK, HANG, ScriptedApi, bookmark, expired, line, obj, page


class Thing(msgspec.Struct):
    metadata: ObjectMeta
    size: int = 0


class Story:
    """A reflector on a scripted server, what its handlers heard, and what it reported."""

    def __init__(self, lists, watches, **options):
        self.api = cast("Any", ScriptedApi(lists, watches))
        self.heard: list[str] = []
        self.troubles: list[type] = []
        self.undecodable: list[tuple[Any, str]] = []
        self.reflector = Reflector(
            self.api,
            PODS,
            Thing,
            VirtualClock(),
            rng=Random(1),
            on_trouble=lambda _, error: self.troubles.append(type(error)),
            on_undecodable=lambda _, key, why: self.undecodable.append((key, why)),
            **options,
        )
        self.reflector.subscribe(self._hear)

    def _hear(self, change, old, new):
        assert (old is None) == (change is Change.ADDED)
        assert (new is None) == (change is Change.DELETED)
        thing = new or old
        assert thing is not None
        self.heard.append(f"{change} {thing.metadata.name} {thing.metadata.resource_version}")

    @property
    def names(self):
        return sorted(thing.metadata.name for thing in self.reflector)

    async def played(self):
        """Run until the script is used up."""
        await self.run_until(self.api.exhausted.is_set)

    async def run_until(self, condition):
        running = asyncio.ensure_future(self.reflector.run())
        try:
            waiting = asyncio.ensure_future(until(condition))
            await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                waiting.cancel()
                running.result()
            waiting.result()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@virtual
async def test_list_in_pages_then_watch_from_the_lists_version():
    story = Story([page(10, obj("a", 3), token="next"), page(10, obj("b", 4))], [])
    await story.played()
    assert story.api.asked == [("list", "", 250), ("list", "next", 250), ("watch", "10")]
    assert story.heard == ["Added a 3", "Added b 4"]
    assert story.reflector.synced.is_set()
    there = story.reflector.get("ns", "a")
    assert there is not None
    assert there.metadata.resource_version == "3"
    assert story.reflector.get("ns", "zzz") is None
    assert len(story.reflector) == 2


@virtual
async def test_synced_only_after_the_last_page():
    story = Story([page(10, obj("a", 3), token="next"), Unreachable("gone"), page(11, obj("a", 3))], [])
    seen = []
    story.reflector.subscribe(lambda *_: seen.append(story.reflector.synced.is_set()))
    await story.played()
    assert seen == [False]
    assert story.reflector.relists == 0


@virtual
async def test_the_first_page_decides_from_where_to_watch():
    """A list continued after its token expired goes on at a later version: what changed in between is not in it."""
    story = Story([page(10, obj("a", 3), token="next"), page(25, obj("b", 20))], [])
    await story.played()
    assert story.api.asked[-1] == ("watch", "10")


@virtual
async def test_events_in_order():
    story = Story(
        [page(10)],
        [[line("ADDED", obj("a", 11)), line("MODIFIED", obj("a", 12)), line("DELETED", obj("a", 13))]],
    )
    await story.played()
    # The old state is the last one the cache held, not the one that came with the deletion.
    assert story.heard == ["Added a 11", "Modified a 12", "Deleted a 12"]
    assert story.names == []
    assert story.api.asked[-1] == ("watch", "13"), "a deletion moves the version too"


@virtual
async def test_end_of_stream_resumes_from_the_last_event_and_from_bookmarks():
    story = Story([page(10)], [[line("ADDED", obj("a", 11))], [bookmark(40)]])
    await story.played()
    assert story.api.asked == [("list", "", 250), ("watch", "10"), ("watch", "11"), ("watch", "40")]
    assert story.reflector.restarts == 0
    assert story.troubles == []


@virtual
async def test_410_as_an_event_relists_and_finds_what_vanished():
    story = Story([page(10, obj("a", 3), obj("b", 4)), page(90, obj("b", 77), obj("c", 80))], [[expired()]])
    await story.played()
    # Deletions last: in between the cache shows rather too much in use than too little.
    assert story.heard == ["Added a 3", "Added b 4", "Modified b 77", "Added c 80", "Deleted a 3"]
    assert story.api.asked[-1] == ("watch", "90")
    assert (story.reflector.restarts, story.reflector.relists) == (1, 1)
    assert story.troubles == [Gone, type(None)]


@virtual
async def test_410_as_the_answer_relists():
    story = Story([page(10, obj("a", 3)), page(90)], [Gone(410, "Expired", "too old")])
    await story.played()
    assert story.heard == ["Added a 3", "Deleted a 3"]


@virtual
async def test_a_page_token_that_expired_starts_the_list_anew():
    story = Story(
        [page(10, obj("a", 3), token="t"), Gone(410, "Expired", "continue too old"), page(20, obj("b", 15))], []
    )
    await story.played()
    assert story.heard == ["Added a 3", "Added b 15", "Deleted a 3"]


@virtual
async def test_made_again_under_its_name_between_two_watches():
    story = Story([page(10, obj("a", 3, uid="one")), page(90, obj("a", 80, uid="two"))], [[expired()]])
    await story.played()
    assert story.heard == ["Added a 3", "Deleted a 3", "Added a 80"]


@virtual
async def test_made_again_with_the_delete_event_missing():
    story = Story([page(10, obj("a", 3, uid="one"))], [[line("MODIFIED", obj("a", 12, uid="two"))]])
    await story.played()
    assert story.heard == ["Added a 3", "Deleted a 3", "Added a 12"]


@virtual
async def test_events_twice_and_late_change_nothing():
    story = Story(
        [page(10, obj("a", 9))],
        [
            [
                line("MODIFIED", obj("a", 12)),
                line("MODIFIED", obj("a", 12)),
                line("MODIFIED", obj("a", 11)),
                line("DELETED", obj("a", 5)),  # it left the selector once and came back
                line("DELETED", obj("a", 20, uid="another")),
                line("MODIFIED", obj("a", 7, uid="another")),
                line("DELETED", obj("zzz", 13)),
            ]
        ],
    )
    await story.played()
    assert story.heard == ["Added a 9", "Modified a 12"]


@virtual
async def test_a_hang_is_found_and_the_watch_resumed():
    story = Story([page(10), page(12)], [[line("ADDED", obj("a", 11)), HANG], [line("ADDED", obj("b", 12))]])
    await story.played()
    # After a break: does the server still count on from our version (list, limit 1)? Then resume, no relist.
    assert story.api.asked == [("list", "", 250), ("watch", "10"), ("list", "", 1), ("watch", "11"), ("watch", "12")]
    assert story.heard == ["Added a 11", "Added b 12"]
    assert story.reflector.restarts == 1
    assert story.troubles == [Unreachable, type(None)]


@virtual
async def test_a_broken_connection_resumes_after_what_was_handled():
    story = Story([page(10), page(11)], [[line("ADDED", obj("a", 11)), BREAK]])
    await story.played()
    assert story.api.asked[-1] == ("watch", "11")
    assert story.heard == ["Added a 11"]


@virtual
async def test_a_restored_server_is_noticed():
    """After its etcd came back from a backup the server counts from lower. A watch from version 500 would be silent
    until the new history reaches 500; a list says what is there."""
    story = Story(
        [page(500, obj("a", 400), obj("b", 450)), page(300), page(300, obj("a", 200), obj("c", 290))],
        [[BREAK]],
    )
    await story.played()
    assert story.api.asked[2:] == [("list", "", 1), ("list", "", 250), ("watch", "300")]
    assert story.heard[2:] == ["Modified a 200", "Added c 290", "Deleted b 450"]


@virtual
async def test_after_a_restore_a_version_may_mean_another_state():
    """The server counts over the same numbers again; a list is compared by content."""
    story = Story(
        [page(500, obj("a", 400, size=1), obj("b", 450)), page(420), page(420, obj("a", 400, size=2), obj("b", 450))],
        [[BREAK]],
    )
    await story.played()
    assert story.heard == ["Added a 400", "Added b 450", "Modified a 400"]
    there = story.reflector.get("ns", "a")
    assert there is not None
    assert there.size == 2


@virtual
async def test_a_watch_that_brought_nothing_is_doubted():
    """The restored server may just as well end the silent watch politely."""
    story = Story([page(500, obj("a", 400)), page(300), page(300)], [[]])
    await story.played()
    assert story.heard == ["Added a 400", "Deleted a 400"]


@virtual
async def test_forbidden_is_reported_and_retried_and_changes_nothing():
    refused = Forbidden(403, "Forbidden", "pods is forbidden")
    story = Story(
        [page(10, obj("a", 3)), refused, refused, page(20, obj("a", 3))],
        [refused],
    )
    await story.played()
    assert story.heard == ["Added a 3"]
    assert story.troubles == [Forbidden, Forbidden, Forbidden, type(None)]


@virtual
async def test_a_crd_that_is_not_there_yet():
    missing = NotFound(404, "", "the server could not find the requested resource")
    story = Story([missing] * 20 + [page(1, obj("a", 1))], [])
    loop = asyncio.get_running_loop()
    await story.played()
    assert story.heard == ["Added a 1"]
    # 20 failures: 0.2, 0.4 ... capped at 15 s, at most half of each taken off by the jitter.
    assert 20 * 15 / 2 - 60 < loop.time() < 20 * 15


@virtual
async def test_retry_after_is_honoured():
    story = Story([TooManyRequests(429, "TooManyRequests", "later", retry_after=120.0), page(1)], [])
    await story.played()
    assert asyncio.get_running_loop().time() >= 120


@virtual
async def test_a_proxy_that_cuts_every_watch_at_once_does_not_make_us_spin():
    story = Story([page(10)] * 500, [[] for _ in range(400)])
    await story.run_until(lambda: asyncio.get_running_loop().time() > 300)
    assert len(story.api.asked) < 150


@virtual
async def test_what_is_no_api_server_changes_nothing():
    story = Story(
        [page(10, obj("a", 3)), page(10), b"<html>login</html>"] + [page(11, obj("a", 3))] * 2, [[b"<html>"], [BREAK]]
    )
    await story.played()
    assert story.heard == ["Added a 3"]


@virtual
async def test_an_object_that_does_not_decode_is_reported_and_kept_as_it_was():
    story = Story(
        [
            page(10, obj("a", 3, size=1), obj("bad", 4, size="big")),
            page(30, obj("a", 3, size=1), obj("late", 20, size="big")),
        ],
        [[line("MODIFIED", obj("a", 11, size="big")), line("ADDED", obj("late", 12, size=5)), expired()]],
    )
    await story.played()
    assert story.heard == ["Added a 3", "Added late 12"]
    assert [key for key, _ in story.undecodable] == [("ns", "bad"), ("ns", "a"), ("ns", "late")]
    assert "Expected `int`, got `str`" in story.undecodable[0][1]
    assert story.names == ["a", "late"], "nothing was deleted for being unreadable"


@virtual
async def test_an_object_without_readable_metadata_could_be_any_of_those_missing():
    nameless = {"metadata": {"name": 5}}
    story = Story([page(10, obj("a", 3), obj("b", 4)), page(30, obj("a", 3), nameless)], [[expired()]])
    await story.played()
    assert story.names == ["a", "b"]
    assert story.undecodable[0][0] == ("", "")


@virtual
async def test_an_unreadable_object_of_another_incarnation_ends_the_old_one():
    story = Story([page(10, obj("a", 3, uid="one")), page(30, obj("a", 20, uid="two", size="big"))], [[expired()]])
    await story.played()
    assert story.heard == ["Added a 3", "Deleted a 3"]


@virtual
async def test_handlers_that_come_late_hear_what_is_there():
    story = Story([page(10, obj("a", 3))], [])
    await story.played()
    late: list[Any] = []
    story.reflector.subscribe(lambda change, _, new: late.append((change, new and new.metadata.name)))
    assert late == [(Change.ADDED, "a")]


@virtual
async def test_a_handler_that_raises_ends_the_run():
    story = Story([page(10, obj("a", 3))], [])

    def broken(*_):
        raise LookupError("bug")

    story.reflector.subscribe(broken)
    with pytest.raises(LookupError):
        await story.played()


@virtual
async def test_the_age_of_the_last_news():
    story = Story([page(10)], [[bookmark(11), HANG]])
    assert story.reflector.last_event_age() == float("inf")
    await story.run_until(lambda: asyncio.get_running_loop().time() > 50)
    assert 49 < story.reflector.last_event_age() < 51


@virtual
async def test_the_loop_gets_turns_during_a_flood():
    """1,000 buffered lines are not handled in one go."""
    story = Story([page(10)], [[line("ADDED", obj(f"o{i}", 11 + i)) for i in range(1000)]])
    turns = []

    async def other():
        while len(story.heard) < 1000:
            turns.append(len(story.heard))
            # Virtual time stands still while anybody is ready: hand on the turn, and now and then let time pass.
            await asyncio.sleep(0 if story.heard else 0.001)

    running = asyncio.ensure_future(other())
    await story.played()
    await running
    counts = [b - a for a, b in pairwise(turns)]
    assert max(counts) <= 100


# Any history ------------------------------------------------------------------------------------------------------


class History:
    """A server with one kind of object: every write gets a version; watches replay from any version not compacted."""

    def __init__(self):
        self.version = 10
        self.objects = {}
        self.log = []
        self.compacted = 0
        self.uids = 0
        self.rng = Random(3)
        self.changed = asyncio.Event()
        self.cuts = []
        self.fail_next = 0

    def apply(self, step):
        kind, name = step
        self.version += 1
        if kind == "put":
            there = self.objects.get(name)
            if there is None:
                self.uids += 1
                self.objects[name] = obj(name, self.version, uid=f"u{self.uids}")
                self.log.append((self.version, line("ADDED", self.objects[name])))
            else:
                self.objects[name] = obj(name, self.version, uid=there["metadata"]["uid"])
                self.log.append((self.version, line("MODIFIED", self.objects[name])))
        elif kind == "delete" and name in self.objects:
            gone = self.objects.pop(name)
            self.log.append((self.version, line("DELETED", obj(name, self.version, uid=gone["metadata"]["uid"]))))
        elif kind == "compact":
            self.compacted = self.version
        elif kind == "cut":
            for cut in self.cuts:
                cut.set()
        elif kind == "fail":
            self.fail_next += 1
        self.changed.set()

    async def list(self, resource, namespace="", *, limit, continue_token="", **_):
        await asyncio.sleep(0.01)
        if self.fail_next:
            self.fail_next -= 1
            raise Unreachable("down")
        names = sorted(self.objects)
        version, start = (int(p) for p in continue_token.split("/")) if continue_token else (self.version, 0)
        if version < self.compacted:
            raise Gone(410, "Expired", "continue")
        if continue_token and version != self.version:
            # A real server serves the old snapshot; this one cannot.
            raise Gone(410, "Expired", "continue")
        more = start + limit < len(names)
        return page(
            version,
            *(self.objects[n] for n in names[start : start + limit]),
            token=f"{version}/{start + limit}" if more else "",
        )

    def watch(self, resource, namespace="", *, resource_version, **_):
        return self._Watch(self, int(resource_version))

    class _Watch:
        def __init__(self, server, version):
            self.server, self.version = server, version
            self.cut = asyncio.Event()

        async def __aenter__(self):
            await asyncio.sleep(0.01)
            if self.server.fail_next:
                self.server.fail_next -= 1
                raise Unreachable("down")
            if self.version < self.server.compacted:
                raise Gone(410, "Expired", "old")
            self.server.cuts.append(self.cut)
            return self.lines()

        async def __aexit__(self, *_):
            self.server.cuts.remove(self.cut)

        async def lines(self):
            while not self.cut.is_set():
                for version, text in list(self.server.log):
                    if version > self.version:
                        self.version = version
                        yield text
                        if self.server.rng.random() < 0.2:
                            yield text  # delivered twice
                await asyncio.sleep(0.25)


STEPS = st.tuples(
    st.sampled_from(["put"] * 6 + ["delete"] * 3 + ["compact", "cut", "fail", "wait", "wait"]),
    st.sampled_from("abcdef"),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=60), st.integers(1, 4))
def test_whatever_happens_the_cache_ends_as_the_server_is(steps, page_size):
    async def story():
        server: Any = History()
        told: dict[str, Any] = {}
        reflector = Reflector(
            server, PODS, Thing, VirtualClock(), page_size=page_size, rng=Random(5), backoff=Backoff(cap=1.0)
        )

        def hear(change, old, new):
            """Handlers alone must be able to keep the same cache: each change applies to what they know."""
            thing = new or old
            assert thing is not None
            name = thing.metadata.name
            assert told.get(name) is old
            if change is Change.ADDED:
                assert name not in told
            if old is not None and new is not None:
                assert old.metadata.uid == new.metadata.uid
            if new is None:
                del told[name]
            else:
                told[name] = new

        reflector.subscribe(hear)
        running = asyncio.ensure_future(reflector.run())
        for step in steps:
            server.apply(step)
            await asyncio.sleep(0.3 if step[0] == "wait" else 0.001)
        await asyncio.sleep(60)
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        want = {name: (o["metadata"]["uid"], o["metadata"]["resourceVersion"]) for name, o in server.objects.items()}
        assert {t.metadata.name: (t.metadata.uid, t.metadata.resource_version) for t in reflector} == want
        assert {n: (t.metadata.uid, t.metadata.resource_version) for n, t in told.items()} == want

    run_virtual(story())


def test_every_error_is_retried():
    """No kind of ApiError ends run()."""
    for error in (ApiError("?"), Unreachable("?"), StatusError(500, "", ""), Forbidden(401, "", ""), Gone(410, "", "")):

        async def story(error=error):
            story = Story([error, page(1), error, page(1), page(1), page(1)], [error, [BREAK], [BREAK]])
            await story.run_until(lambda: asyncio.get_running_loop().time() > 60)

        run_virtual(story())
