"""Write helpers under rivals and faults, on a simulated API server."""

import asyncio

import msgspec
import pytest

from kube.api import writes
from kube.api.api import CONFIG_MAPS, RESERVATIONS
from kube.api.errors import AlreadyExists, Conflict, NotFound, Unreachable
from kube.objects.meta import ObjectMeta
from kube.objects.reservation import GangReservation, ReservationSpec
from tests.simulation.apiserver import ApiServer
from tests.simulation.apiserver_client import SimulatedApi
from tests.simulation.apiserver_faults import Fault, Faults
from tests.simulation.clock import virtual

NS = "muster-system"


def reservation(epoch=1):
    return GangReservation(
        metadata=ObjectMeta(name="job-1", namespace=NS),
        spec=ReservationSpec(
            hub_id="hub", job_id="job", epoch=epoch, job_namespace="default", job_name="j", roles=[], min_member=1
        ),
    )


@virtual
async def test_create_or_read_of_a_struct():
    api = SimulatedApi(ApiServer())
    made, is_new = await writes.create_or_read(api, RESERVATIONS, reservation())
    assert is_new
    assert made.metadata.uid
    there, is_new = await writes.create_or_read(api, RESERVATIONS, reservation(epoch=2))
    assert not is_new
    assert there.spec.epoch == 1
    assert there.metadata.uid == made.metadata.uid


@virtual
async def test_a_create_whose_answer_was_lost_is_found_by_asking_again():
    faults = Faults()
    faults.tell(Fault.LOST, verb="create")
    api = SimulatedApi(ApiServer(), faults=faults)
    with pytest.raises(Unreachable) as caught:
        await writes.create_or_read(api, RESERVATIONS, reservation())
    assert caught.value.uncertain
    there, is_new = await writes.create_or_read(api, RESERVATIONS, reservation())
    assert not is_new
    assert there.spec.epoch == 1


@virtual
async def test_create_or_read_while_somebody_deletes():
    """AlreadyExists, then NotFound, then it can be made."""
    server = ApiServer()
    api = SimulatedApi(server)
    await writes.create_or_read(api, RESERVATIONS, reservation())
    original = api.get

    async def deleted_meanwhile(*args, **kwargs):
        if server.doc(RESERVATIONS, "job-1", NS):
            server.delete(RESERVATIONS, "job-1", NS)
        return await original(*args, **kwargs)

    api.get = deleted_meanwhile  # type: ignore[method-assign]
    made, is_new = await writes.create_or_read(api, RESERVATIONS, reservation(epoch=2))
    assert is_new
    assert made.spec.epoch == 2


@virtual
async def test_create_or_read_gives_up_on_an_object_that_flickers():
    server = ApiServer()
    api = SimulatedApi(server)

    async def flickering(*args, **kwargs):
        raise NotFound(404, "NotFound", "gone again")

    await writes.create_or_read(api, RESERVATIONS, reservation())
    api.get = flickering  # type: ignore[method-assign]
    with pytest.raises(AlreadyExists):
        await writes.create_or_read(api, RESERVATIONS, reservation())


@virtual
async def test_replace_is_one_put_with_the_version_it_was_decided_on():
    api = SimulatedApi(ApiServer())
    made, _ = await writes.create_or_read(api, RESERVATIONS, reservation())
    changed = msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, state="Dispatched"))
    replaced = await writes.replace(api, RESERVATIONS, changed)
    assert replaced.spec.state == "Dispatched"
    with pytest.raises(Conflict):
        await writes.replace(api, RESERVATIONS, changed)


@virtual
async def test_update_decides_anew_after_each_conflict():
    """Ten writers count up one number."""
    server = ApiServer()
    api = SimulatedApi(server)
    await api.create(CONFIG_MAPS, b'{"metadata":{"name":"n"},"data":{"n":"0"}}', NS)

    def more(doc):
        return doc | {"data": {"n": str(int(doc["data"]["n"]) + 1)}}

    await asyncio.gather(
        *(writes.update(api, CONFIG_MAPS, dict, more, name="n", namespace=NS, attempts=30) for _ in range(10))
    )
    assert server.existing(CONFIG_MAPS, "n", NS)["data"]["n"] == "10"


@virtual
async def test_update_with_nothing_to_do_writes_nothing():
    server = ApiServer()
    api = SimulatedApi(server)
    await writes.create_or_read(api, RESERVATIONS, reservation())
    got = await writes.update(api, RESERVATIONS, GangReservation, lambda _: None, name="job-1", namespace=NS)
    assert got.spec.epoch == 1
    assert [e.request.verb for e in server.audit] == ["create", "get"]


@virtual
async def test_update_gives_up_after_its_attempts():
    server = ApiServer()
    api = SimulatedApi(server)
    await writes.create_or_read(api, RESERVATIONS, reservation())
    tries = 0

    def mutate(current):
        nonlocal tries
        tries += 1
        server.patch(RESERVATIONS, "job-1", {"metadata": {"labels": {"n": str(tries)}}}, NS)
        return msgspec.structs.replace(current, spec=msgspec.structs.replace(current.spec, renewals=tries))

    with pytest.raises(Conflict):
        await writes.update(api, RESERVATIONS, GangReservation, mutate, name="job-1", namespace=NS, attempts=3)
    assert tries == 3


@virtual
async def test_update_of_a_status():
    server = ApiServer()
    api = SimulatedApi(server)
    await writes.create_or_read(api, RESERVATIONS, reservation())

    def reserved(current):
        current.status.state = "Reserved"
        return current

    got = await writes.update(
        api, RESERVATIONS, GangReservation, reserved, name="job-1", namespace=NS, subresource="status"
    )
    assert got.status.state == "Reserved"


@virtual
async def test_read_and_delete_of_what_may_be_gone():
    api = SimulatedApi(ApiServer())
    assert await writes.read(api, RESERVATIONS, GangReservation, "job-1", NS) is None
    assert not await writes.delete_if_there(api, RESERVATIONS, "job-1", NS)
    made, _ = await writes.create_or_read(api, RESERVATIONS, reservation())
    with pytest.raises(Conflict):
        await writes.delete_if_there(api, RESERVATIONS, "job-1", NS, resource_version="1")
    assert await writes.delete_if_there(api, RESERVATIONS, "job-1", NS, uid=made.metadata.uid)


@virtual
async def test_apply_of_a_document():
    api = SimulatedApi(ApiServer())
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "q", "namespace": NS}, "data": {"a": "1"}}
    assert (await writes.apply(api, CONFIG_MAPS, body))["data"] == {"a": "1"}
