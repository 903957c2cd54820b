"""Capacity reports: on change, not more often than allowed, whatever the API server does."""

import asyncio

import pytest

from extender.reporter import Reporter
from kube.api.api import CAPACITIES
from kube.api.errors import Unreachable
from kube.objects.capacity import CapacityStatus
from tests.unit.extender_doubles import ManualClock, ScriptedApi, settle

PUT = "replace clustercapacities/status /cluster"
POST = "create clustercapacities /cluster"


class Case:
    def __init__(self):
        self.clock = ManualClock()
        self.api = ScriptedApi()
        self.nodes: int | None = 1
        self.sequence = 0
        self.reporter = Reporter(self.api, self.clock, self.report, interval=1.0, timeout=5.0)

    def report(self):
        if self.nodes is None:
            return None
        self.sequence += 1
        return CapacityStatus(nodes=self.nodes, sequence=self.sequence)

    async def publish(self, within=60.0):
        """Runs one publish to its end; returns how long it took."""
        began = self.clock.monotonic()
        task = asyncio.ensure_future(self.reporter.publish())
        await settle()
        while not task.done():
            await self.clock.advance(0.25)
            assert self.clock.monotonic() < began + within
        await task
        return self.clock.monotonic() - began

    def said(self):
        return self.api.objects[("ClusterCapacity", "", "cluster")]["status"]["nodes"]

    def writes(self):
        return [call.target for call in self.api.calls if call.verb != "get"]


@pytest.fixture
def case():
    return Case()


def created(case):
    return [target for target in case.writes() if target.startswith("create")]


async def test_the_object_is_made_if_it_is_missing_and_status_is_put(case):
    await case.publish()
    assert len(created(case)) == 1
    assert case.writes()[-1] == PUT
    assert case.said() == 1


async def test_an_object_that_is_there_is_taken_over(case):
    case.api.put(CAPACITIES, {"metadata": {"name": "cluster"}, "status": {"nodes": 9}})
    await case.publish()
    assert case.said() == 1


async def test_two_reports_are_an_interval_apart(case):
    assert await case.publish() == 1.0
    case.nodes = 2
    assert await case.publish() == 1.0
    assert case.said() == 2


async def test_the_same_again_is_not_written_and_not_looked_for_at_every_change(case):
    """A gang of 500 changes the ledger 500 times while it assembles; to the hub it all looks the same."""
    await case.publish()
    before = len(case.writes())
    assert await case.publish() == 0.25
    assert len(case.writes()) == before


async def test_only_one_write_per_report_once_it_is_known(case):
    await case.publish()
    before = len(case.api.calls)
    case.nodes = 2
    await case.publish()
    assert case.api.targets()[before:] == [PUT]


async def test_nothing_is_said_while_not_deciding(case):
    case.nodes = None
    assert await case.publish() == 0.0
    assert case.api.calls == []


async def test_after_standing_by_the_same_is_said_again(case):
    """Whoever led meanwhile may have written something else."""
    await case.publish()
    case.nodes = None
    await case.publish()
    case.nodes = 1
    before = len(case.writes())
    await case.publish()
    assert len(case.writes()) == before + 1


async def test_a_conflict_is_read_anew_and_written(case):
    await case.publish()
    case.api.put(CAPACITIES, {"metadata": {"name": "cluster"}, "status": {"nodes": 77}})
    case.nodes = 3
    await case.publish()
    assert case.said() == 3


async def test_while_the_api_server_is_away_the_latest_state_waits(case):
    case.api.answers["create clustercapacities /"] = [Unreachable("refused")] * 3
    task = asyncio.ensure_future(case.reporter.publish())
    await settle()
    case.nodes = 5
    await case.clock.advance(60.0)
    assert task.done()
    assert case.said() == 5


async def test_an_object_that_was_deleted_is_made_again(case):
    await case.publish()
    case.api.objects.clear()
    case.nodes = 4
    await case.publish()
    assert case.said() == 4
