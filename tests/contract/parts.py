"""kube.api's own parts on top of an API server: reflector, Leases, events, write helpers."""

import asyncio

import msgspec

from kube.api import writes
from kube.api.api import CONFIG_MAPS, EVENTS, LEASES, Api
from kube.api.clock import SystemClock
from kube.api.events import EventRecorder, reference
from kube.api.leases import Heartbeat, LeaderElector, LeaseFollower
from kube.api.reflector import Reflector
from kube.objects.meta import ObjectMeta
from tests.contract.cases import WIDGETS, case, config_map, create, decode, encode, eventually, widget


class LoopClock(SystemClock):
    """The loop's time, real or virtual."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class Widget(msgspec.Struct):
    metadata: ObjectMeta
    spec: dict[str, int]


@case
async def a_reflector_follows(api: Api, namespace: str) -> None:
    for i in range(20):
        await create(api, WIDGETS, widget(f"w{i}", x=i), namespace)
    reflector = Reflector(api, WIDGETS, Widget, LoopClock(), namespace=namespace, page_size=7)
    running = asyncio.ensure_future(reflector.run())
    try:
        await asyncio.wait_for(reflector.synced.wait(), 30)
        assert {w.metadata.name: w.spec["x"] for w in reflector} == {f"w{i}": i for i in range(20)}
        for i in range(0, 20, 2):
            await api.delete(WIDGETS, f"w{i}", namespace)
        await api.patch(WIDGETS, "w1", encode({"spec": {"x": 100}}), namespace)
        await create(api, WIDGETS, widget("w0", x=-1), namespace)
        want = {f"w{i}": i for i in range(3, 20, 2)} | {"w1": 100, "w0": -1}

        async def same() -> bool:
            return {w.metadata.name: w.spec["x"] for w in reflector} == want

        await eventually(same)
        assert reflector.trouble is None
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@case
async def one_leads_and_hands_over(api: Api, namespace: str) -> None:
    def elector(identity: str) -> LeaderElector:
        return LeaderElector(
            api,
            LoopClock(),
            name="leader",
            namespace=namespace,
            identity=identity,
            lease_seconds=4,
            margin_seconds=1,
            retry_seconds=0.2,
            call_seconds=2,
        )

    first, second = elector("first"), elector("second")
    running = [asyncio.ensure_future(first.run())]
    await asyncio.wait_for(first.wait_leading(), 30)
    running.append(asyncio.ensure_future(second.run()))
    try:
        await asyncio.sleep(1)
        assert first.leading
        assert not second.leading
        assert decode(await api.get(LEASES, "leader", namespace))["spec"]["holderIdentity"] == "first"
        running[0].cancel()
        # Released: no wait for the lease to run out.
        await asyncio.wait_for(second.wait_leading(), 3)
        assert not first.leading
        assert second.transitions == first.transitions + 1
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


@case
async def a_heartbeat_is_followed(api: Api, namespace: str) -> None:
    beats = 0

    def annotations(there):
        nonlocal beats
        beats += 1
        return {"muster.dev/nonce": str(beats)}

    heart = Heartbeat(
        api,
        LoopClock(),
        name="beat",
        namespace=namespace,
        holder="host_1234",
        lease_seconds=10,
        every_seconds=1,
        annotations=annotations,
    )
    follower = LeaseFollower(api, LoopClock(), name="beat", namespace=namespace)
    await follower.read()
    assert follower.holder() == ""
    await heart.beat()
    await follower.read()
    assert follower.held_by("host_")
    assert follower.held_by("host_1234")
    assert not follower.held_by("host")
    await api.patch(LEASES, "beat", encode({"metadata": {"annotations": {"other": "kept"}}}), namespace)
    beaten = await heart.beat()
    assert beaten is not None
    assert (beaten.metadata.annotations or {})["other"] == "kept"
    await follower.read()
    assert follower.renewals == 2
    assert 8 < follower.fence("host_") <= 10


@case
async def events_are_written_and_counted(api: Api, namespace: str) -> None:
    thing = await create(api, CONFIG_MAPS, config_map("thing"), namespace)
    about = reference("v1", "ConfigMap", msgspec.convert(thing["metadata"], ObjectMeta))
    recorder = EventRecorder(api, LoopClock(), component="muster-dispatcher", instance="me")
    recorder.record(
        about, "Normal", "ScheduleBindingSucceed", "Binding has been scheduled", component="default-scheduler"
    )
    recorder.record(about, "Warning", "Waits", "c1: largest fit 7 of 9 pods")
    recorder.record(about, "Warning", "Waits", "c1: largest fit 7 of 9 pods")
    await recorder.flush()
    recorder.record(about, "Warning", "Waits", "c1: largest fit 7 of 9 pods")
    await recorder.flush()
    restarted = EventRecorder(api, LoopClock(), component="muster-dispatcher", instance="again")
    restarted.record(about, "Warning", "Waits", "c1: largest fit 7 of 9 pods")
    await restarted.flush()
    selector = f"involvedObject.uid={thing['metadata']['uid']}"
    items = decode(await api.list(EVENTS, namespace, field_selector=selector))["items"]
    events = {event["reason"]: event for event in items}
    assert len(items) == 2
    assert events["Waits"]["count"] == 4
    assert events["Waits"]["type"] == "Warning"
    assert events["Waits"]["source"]["component"] == events["Waits"]["reportingComponent"] == "muster-dispatcher"
    assert events["ScheduleBindingSucceed"]["source"] == {"component": "default-scheduler"}
    assert events["ScheduleBindingSucceed"]["count"] == 1
    assert events["ScheduleBindingSucceed"]["involvedObject"]["kind"] == "ConfigMap"
    assert (recorder.failed, recorder.dropped, restarted.failed) == (0, 0, 0)


@case
async def write_helpers(api: Api, namespace: str) -> None:
    body = widget("a", x=1)
    body["metadata"]["namespace"] = namespace
    made, is_new = await writes.create_or_read(api, WIDGETS, body)
    assert is_new
    other = widget("a", x=2)
    other["metadata"]["namespace"] = namespace
    there, is_new = await writes.create_or_read(api, WIDGETS, other)
    assert not is_new
    assert there == made

    rounds = 0

    async def interfere() -> None:
        await api.patch(WIDGETS, "a", encode({"spec": {"theirs": 1}}), namespace)

    class Meddled:
        """Somebody writes between the read and the first PUT."""

        def __getattr__(self, name: str):
            return getattr(api, name)

        async def replace(self, *args, **kwargs) -> bytes:
            if rounds == 1:
                await interfere()
            return await api.replace(*args, **kwargs)

    def more(doc):
        nonlocal rounds
        rounds += 1
        return doc | {"spec": doc["spec"] | {"mine": 1}}

    meddled: Api = Meddled()
    updated = await writes.update(meddled, WIDGETS, dict, more, name="a", namespace=namespace)
    assert updated["spec"] == {"x": 1, "theirs": 1, "mine": 1}
    assert rounds == 2
    assert await writes.read(api, WIDGETS, dict, "zzz", namespace) is None
    assert await writes.delete_if_there(api, WIDGETS, "a", namespace)
    assert not await writes.delete_if_there(api, WIDGETS, "a", namespace)
