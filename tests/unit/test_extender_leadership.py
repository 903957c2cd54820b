"""The extender decides exactly while the scheduler beside it leads, its own lease is held and its caches are fresh."""

import asyncio

import pytest

from extender.leadership import Leadership, follow
from tests.unit.extender_doubles import ManualClock, settle

US = "host-a_"


class OwnLease:
    """An elector that acquires at once while it runs, unless somebody else holds the lease."""

    def __init__(self, clock):
        self.clock = clock
        self.until = 0.0
        self.campaigning = False
        self.taken_by_other = False
        self.lost = asyncio.Event()

    def fence(self):
        return max(0.0, self.until - self.clock.monotonic())

    def lapse(self):
        """It ended and began again before anybody looked."""
        self.lost.set()
        self.lost.clear()

    async def wait_lost(self):
        await self.lost.wait()

    async def run(self):
        self.campaigning = True
        try:
            while True:
                if not self.taken_by_other:
                    self.until = self.clock.monotonic() + 10.0
                await self.clock.sleep(2.0)
        finally:
            self.campaigning = False
            self.until = 0.0


class SchedulerLease:
    def __init__(self, clock, holder=""):
        self.clock = clock
        self.holder = holder
        self.until = float("inf")

    def held_by(self, identity):
        return self.holder.startswith(identity)

    def fence(self, identity):
        return max(0.0, self.until - self.clock.monotonic()) if self.held_by(identity) else 0.0

    async def run(self):
        await asyncio.Event().wait()


class Life:
    """Caches and core in one: a diary of what happened."""

    def __init__(self):
        self.diary = []
        self.complete = asyncio.Event()
        self.complete.set()

    def list_again(self):
        self.diary.append("list again")

    async def wait_synced(self):
        await self.complete.wait()

    def synced(self):
        self.diary.append("deciding")

    def stood_down(self):
        self.diary.append("stood down")


class Case:
    def __init__(self, holder):
        self.clock = ManualClock()
        self.own = OwnLease(self.clock)
        self.scheduler = SchedulerLease(self.clock, holder) if holder is not None else None
        self.leadership = Leadership(self.clock, self.own, self.scheduler, US)
        self.life = Life()
        self.quiet_seconds = 0.0
        self.tasks = [
            asyncio.ensure_future(self.leadership.run()),
            asyncio.ensure_future(follow(self.leadership, self.life, self.life, quiet=self.quiet)),
        ]

    async def quiet(self):
        await self.clock.sleep(self.quiet_seconds)

    async def stop(self):
        for task in self.tasks:
            task.cancel()
        await settle()


@pytest.fixture
async def start():
    cases = []

    def begin(holder):
        cases.append(Case(holder))
        return cases[-1]

    yield begin
    for case in cases:
        await case.stop()


async def test_without_leader_election_of_the_scheduler_the_own_lease_decides(start):
    case = start(None)
    await case.clock.advance(1.0)
    assert case.life.diary == ["list again", "deciding"]
    assert case.leadership.why_not() == ""


async def test_it_leads_where_its_scheduler_leads(start):
    case = start("host-a_1f6c")
    await case.clock.advance(1.0)
    assert case.life.diary == ["list again", "deciding"]


async def test_beside_a_scheduler_that_only_stands_by_it_does_not_even_campaign(start):
    case = start("host-b_77aa")
    await case.clock.advance(60.0)
    assert case.life.diary == []
    assert not case.own.campaigning
    assert "host-a_" in case.leadership.why_not()


async def test_it_follows_its_scheduler_in_and_out(start):
    case = start("host-b_77aa")
    await case.clock.advance(5.0)
    case.scheduler.holder = "host-a_1f6c"
    await case.clock.advance(1.0)
    assert case.life.diary == ["list again", "deciding"]
    case.scheduler.holder = "host-b_77aa"
    await case.clock.advance(1.0)
    assert case.life.diary == ["list again", "deciding", "stood down"]
    assert not case.own.campaigning, "the own lease is let go for the extender over there"


async def test_two_extenders_beside_one_scheduler_do_not_both_lead(start):
    case = start("host-a_1f6c")
    case.own.taken_by_other = True
    await case.clock.advance(60.0)
    assert case.life.diary == []
    assert "held by another" in case.leadership.why_not()


async def test_leadership_ends_when_the_scheduler_lease_is_not_renewed_in_time(start):
    """Nobody has taken it yet; but from here on somebody may."""
    case = start("host-a_1f6c")
    await case.clock.advance(1.0)
    case.scheduler.until = case.clock.monotonic() + 3.0
    assert case.leadership.left() == 3.0
    await case.clock.advance(3.2)
    assert case.leadership.left() == 0.0
    assert case.life.diary[-1] == "stood down"


async def test_the_smaller_of_the_two_fences_counts(start):
    case = start("host-a_1f6c")
    await case.clock.advance(0.0)
    assert case.leadership.left() == 10.0
    case.scheduler.until = case.clock.monotonic() + 4.0
    assert case.leadership.left() == 4.0


async def test_a_stop_of_the_process_ends_leadership_at_once_and_caches_are_read_anew(start):
    case = start(None)
    await case.clock.advance(1.0)
    case.clock.jump(60.0)
    assert case.leadership.left() == 0.0, "before anything else has run"
    case.own.lapse()  # what the elector does on the renewal after a lapse
    await case.clock.advance(1.0)
    assert case.life.diary == ["list again", "deciding", "stood down", "list again", "deciding"]


async def test_nothing_is_decided_before_caches_are_complete(start):
    case = start(None)
    case.life.complete.clear()
    await case.clock.advance(30.0)
    assert case.life.diary == ["list again"]
    case.life.complete.set()
    await case.clock.advance(0.0)
    assert case.life.diary == ["list again", "deciding"]


async def test_what_a_predecessor_has_under_way_is_waited_for(start):
    """A Binding POSTed right before the predecessor was killed may take its whole timeout (2 s) to show."""
    case = start(None)
    case.quiet_seconds = 2.0
    await case.clock.advance(1.9)
    assert case.life.diary == ["list again"]
    await case.clock.advance(0.2)
    assert case.life.diary == ["list again", "deciding"]


async def test_leadership_lost_while_caches_fill_starts_over(start):
    case = start("host-a_1f6c")
    case.life.complete.clear()
    await case.clock.advance(1.0)
    case.scheduler.holder = "host-b_77aa"
    await case.clock.advance(1.0)
    case.life.complete.set()
    await case.clock.advance(1.0)
    assert case.life.diary == ["list again"]
    case.scheduler.holder = "host-a_1f6c"
    await case.clock.advance(1.0)
    assert case.life.diary == ["list again", "list again", "deciding"]


async def test_ending_the_process_stands_down_first(start):
    case = start(None)
    await case.clock.advance(1.0)
    await case.stop()
    assert case.life.diary[-1] == "stood down"
