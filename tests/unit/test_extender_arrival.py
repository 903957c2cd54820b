"""Arrival times of a process that may have been stopped."""

import asyncio

import pytest

from extender.arrival import ArrivalClock
from tests.unit.extender_doubles import ManualClock, settle


@pytest.fixture
async def case():
    clock = ManualClock(1000.0)
    arrivals = ArrivalClock(clock, beat=0.25, settle=1.0)
    task = asyncio.ensure_future(arrivals.run())
    await settle()
    yield clock, arrivals
    task.cancel()


async def test_while_running_it_is_the_present(case):
    clock, arrivals = case
    await clock.advance(10.1)
    assert arrivals.stamp() == 1010.1


async def test_right_after_a_stop_it_is_when_the_stop_began(case):
    clock, arrivals = case
    await clock.advance(10.0)
    clock.jump(80.0)
    assert arrivals.stamp() == 1010.0
    assert arrivals.stamp() == 1010.0


async def test_whether_the_beat_or_a_request_notices_first_makes_no_difference(case):
    clock, arrivals = case
    await clock.advance(10.0)
    clock.jump(80.0)
    await clock.advance(0.0)  # the beat, overdue, runs
    assert arrivals.stamp() == 1010.0


async def test_old_buffers_are_empty_a_second_later(case):
    clock, arrivals = case
    await clock.advance(10.0)
    clock.jump(80.0)
    arrivals.stamp()
    await clock.advance(0.9)
    assert arrivals.stamp() == 1010.0
    await clock.advance(0.2)
    assert arrivals.stamp() == pytest.approx(1091.1)


async def test_two_stops_in_a_row_count_from_the_first(case):
    """Stopped, continued for a moment, stopped again: what lay in the buffers may be from before both."""
    clock, arrivals = case
    await clock.advance(10.0)
    clock.jump(80.0)
    arrivals.stamp()
    await clock.advance(0.3)
    clock.jump(5.0)
    assert arrivals.stamp() == 1010.0


async def test_a_short_delay_of_the_loop_is_no_stop(case):
    clock, arrivals = case
    await clock.advance(10.0)
    clock.jump(0.4)
    assert arrivals.stamp() == 1010.4
