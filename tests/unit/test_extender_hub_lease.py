"""PROTOCOL rule 12: what counts as a renewal of the hub's Lease."""

import pytest

from extender.hub_lease import HubLease
from kube.api.api import LEASES
from kube.api.errors import Unreachable
from tests.unit.extender_doubles import ManualClock, ScriptedApi

GET = "get leases muster-system/muster-hub"


class Case:
    def __init__(self):
        self.clock = ManualClock()
        self.api = ScriptedApi()
        self.renewals = 0
        self.lease = HubLease(self.api, self.clock, self.renewed, every_seconds=5.0, call_seconds=3.0)

    def renewed(self):
        self.renewals += 1

    def renew(self, at, uid="l"):
        self.api.put(
            LEASES,
            {
                "metadata": {"name": "muster-hub", "namespace": "muster-system", "uid": uid},
                "spec": {"holderIdentity": "hub", "renewTime": at},
            },
        )

    async def look(self, after=5.0):
        self.clock.jump(after)
        await self.lease.look()
        return self.renewals


@pytest.fixture
def case():
    return Case()


async def test_the_first_sight_is_no_renewal(case):
    case.renew("12:00:00")
    assert await case.look() == 0
    assert await case.look() == 0


async def test_a_changed_renew_time_is_one(case):
    case.renew("12:00:00")
    await case.look()
    case.renew("12:00:05")
    assert await case.look() == 1
    assert await case.look() == 1


async def test_a_lease_made_while_we_looked_is_one(case):
    assert await case.look() == 0
    case.renew("12:00:00")
    assert await case.look() == 1


async def test_a_change_seen_after_a_long_stop_proves_nothing_yet(case):
    """Stopped for 20 minutes; the hub renewed once right after the stop began, then fenced this member."""
    case.renew("12:00:00")
    await case.look()
    case.renew("12:00:05")
    assert await case.look(after=1200.0) == 0
    assert await case.look() == 0
    case.renew("12:20:10")
    assert await case.look() == 1


async def test_reads_that_fail_count_as_a_gap_too(case):
    case.renew("12:00:00")
    await case.look()
    case.api.answers[GET] = [Unreachable("cut")] * 4
    for _ in range(4):
        await case.look()
    case.renew("12:00:05")
    assert await case.look() == 0
    case.renew("12:00:35")
    assert await case.look() == 1


async def test_one_failed_read_is_no_gap(case):
    case.renew("12:00:00")
    await case.look()
    case.api.answers[GET] = [Unreachable("cut")]
    await case.look()
    case.renew("12:00:05")
    assert await case.look() == 1
