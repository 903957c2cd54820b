"""The event recorder against a simulated API server in virtual time."""

import asyncio
from random import Random

from kube.api.api import EVENTS, PODS
from kube.api.events import EventRecorder, ObjectReference, reference
from kube.objects.meta import ObjectMeta
from tests.simulation.apiserver import ApiServer
from tests.simulation.apiserver_client import SimulatedApi
from tests.simulation.apiserver_faults import Fault, Faults
from tests.simulation.clock import VirtualClock, until, virtual

JOB = ObjectReference(
    api_version="kubeflow.org/v1", kind="PyTorchJob", name="pytorch-test", namespace="default", uid="u-1"
)
MEMBER = ObjectReference(api_version="muster.dev/v1alpha1", kind="MemberCluster", name="c1", uid="u-2")


class Story:
    def __init__(self, faults=None, **options):
        self.server = ApiServer()
        self.api = SimulatedApi(self.server, "dispatcher", faults)
        self.recorder = EventRecorder(
            self.api, VirtualClock(), component="muster-dispatcher", instance="hub-1", rng=Random(1), **options
        )
        self.running = asyncio.ensure_future(self.recorder.run())

    def events(self, namespace="default"):
        return {doc["reason"]: doc for doc in self.server.docs(EVENTS, namespace)}

    def writes(self):
        return [e.request.verb for e in self.server.audit if e.request.resource == "events"]

    async def end(self):
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)


@virtual
async def test_an_event_as_kubectl_describe_reads_it():
    story = Story()
    story.recorder.record(
        JOB,
        "Normal",
        "ScheduleBindingSucceed",
        "Binding has been scheduled successfully. Result: {c1:0,[{master 1} {worker 2}]}",
        component="default-scheduler",
    )
    await asyncio.sleep(1)
    event = story.events()["ScheduleBindingSucceed"]
    assert event["involvedObject"] == {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "name": "pytorch-test",
        "namespace": "default",
        "uid": "u-1",
    }
    assert event["source"] == {"component": "default-scheduler"}
    assert event["reportingComponent"] == "default-scheduler"
    assert event["reportingInstance"] == "hub-1"
    assert event["type"] == "Normal"
    assert event["message"] == "Binding has been scheduled successfully. Result: {c1:0,[{master 1} {worker 2}]}"
    assert event["count"] == 1
    assert event["firstTimestamp"] == event["lastTimestamp"] == "2026-08-01T12:00:00Z"
    assert event["metadata"]["namespace"] == "default"
    assert event["metadata"]["name"].startswith("pytorch-test.")
    await story.end()


def test_a_reference_is_taken_from_metadata():
    metadata = ObjectMeta(name="a", namespace="ns", uid="u", resource_version="7")
    assert reference("v1", "Pod", metadata) == ObjectReference(
        api_version="v1", kind="Pod", name="a", namespace="ns", uid="u"
    )


@virtual
async def test_repetitions_are_counted_in_one_event_with_few_writes():
    story = Story(quiet_seconds=10)
    for _ in range(100):
        story.recorder.record(JOB, "Warning", "Waiting", "c1: largest fit 7 of 9 pods")
        await asyncio.sleep(1)
    await asyncio.sleep(10)
    event = story.events()["Waiting"]
    assert event["count"] == 100
    assert event["firstTimestamp"] == "2026-08-01T12:00:00Z"
    assert event["lastTimestamp"] == "2026-08-01T12:01:39Z"
    assert story.writes().count("create") == 1
    assert story.writes().count("patch") <= 11
    await story.end()


@virtual
async def test_what_differs_is_another_event():
    story = Story()
    record = story.recorder.record
    record(JOB, "Normal", "A", "m")
    record(JOB, "Warning", "A", "m")
    record(JOB, "Normal", "B", "m")
    record(JOB, "Normal", "A", "m2")
    record(JOB, "Normal", "A", "m", component="default-scheduler")
    record(ObjectReference(api_version="v1", kind="Pod", name="p", namespace="default", uid="u-9"), "Normal", "A", "m")
    await asyncio.sleep(1)
    assert len(story.server.docs(EVENTS, "default")) == 6
    await story.end()


@virtual
async def test_another_version_of_the_object_is_the_same_event():
    story = Story()
    for version in ("1", "2"):
        about = ObjectReference(
            api_version="v1", kind="Pod", name="p", namespace="default", uid="u", resource_version=version
        )
        story.recorder.record(about, "Normal", "A", "m")
    await asyncio.sleep(1)
    assert story.events()["A"]["count"] == 2
    await story.end()


@virtual
async def test_events_of_cluster_scoped_objects_are_in_default():
    story = Story()
    story.recorder.record(MEMBER, "Warning", "Unreachable", "no answer")
    await asyncio.sleep(1)
    event = story.events()["Unreachable"]
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["involvedObject"]
    await story.end()


@virtual
async def test_recording_never_blocks_and_is_bounded():
    story = Story(capacity=50)
    story.api.cut()
    for i in range(80):
        story.recorder.record(JOB, "Normal", "A", f"m{i}")
    for _ in range(20):
        story.recorder.record(JOB, "Normal", "A", "m0")
    assert story.recorder.dropped == 30
    await asyncio.sleep(300)
    story.api.heal()
    await until(lambda: len(story.server.docs(EVENTS, "default")) == 50)
    counts = {doc["message"]: doc["count"] for doc in story.server.docs(EVENTS, "default")}
    assert counts["m0"] == 21
    assert counts["m49"] == 1
    assert story.recorder.failed == 0
    await story.end()


@virtual
async def test_a_server_that_is_away_is_not_hammered():
    story = Story()
    story.server.available = False
    story.recorder.record(JOB, "Normal", "A", "m")
    asked = 0
    original = story.api.create

    async def counting(*args, **kwargs):
        nonlocal asked
        asked += 1
        return await original(*args, **kwargs)

    story.api.create = counting  # type: ignore[method-assign]
    await asyncio.sleep(600)
    assert asked < 60, "back-off up to 30 s"
    await story.end()


@virtual
async def test_every_fault_is_survived_and_nothing_is_lost():
    for fault in (Fault.REFUSED, Fault.LOST, Fault.HANG, Fault.BUSY, Fault.ERROR, Fault.ERROR_DONE):
        faults = Faults()
        faults.tell(fault, resource="events")
        story = Story(faults)
        story.recorder.record(JOB, "Normal", "A", "m")
        story.recorder.record(JOB, "Normal", "B", "m")
        await asyncio.sleep(60)
        assert set(story.events()) == {"A", "B"}, fault
        await story.end()


@virtual
async def test_a_refusal_is_counted_and_the_rest_goes_on():
    story = Story()
    nowhere = ObjectReference(api_version="v1", kind="Pod", name="p", namespace="no-such-namespace", uid="u")
    story.recorder.record(nowhere, "Normal", "A", "m")
    story.recorder.record(JOB, "Normal", "B", "m")
    await asyncio.sleep(1)
    assert story.recorder.failed == 1
    assert set(story.events()) == {"B"}
    await story.end()


@virtual
async def test_an_event_that_expired_is_made_again():
    story = Story(quiet_seconds=1)
    story.recorder.record(JOB, "Normal", "A", "m")
    await asyncio.sleep(1)
    name = story.events()["A"]["metadata"]["name"]
    story.server.delete(EVENTS, name, "default")
    story.recorder.record(JOB, "Normal", "A", "m")
    await asyncio.sleep(2)
    assert story.events()["A"]["count"] == 1
    story.recorder.record(JOB, "Normal", "A", "m")
    await asyncio.sleep(2)
    assert story.events()["A"]["count"] == 2
    await story.end()


@virtual
async def test_a_restarted_recorder_counts_on():
    story = Story()
    for _ in range(3):
        story.recorder.record(JOB, "Normal", "A", "m")
    await asyncio.sleep(1)
    await story.end()
    again = EventRecorder(story.api, VirtualClock(), component="muster-dispatcher", instance="hub-2")
    again.record(JOB, "Normal", "A", "m")
    await again.flush()
    assert story.events()["A"]["count"] == 4
    assert "get" not in story.writes(), "no right to read events is needed"


@virtual
async def test_what_is_forgotten_is_found_again():
    story = Story(remember=2, quiet_seconds=1)
    for _ in range(3):
        for message in ("a", "b", "c"):
            story.recorder.record(JOB, "Normal", "A", message)
            await asyncio.sleep(2)
    counts = {doc["message"]: doc["count"] for doc in story.server.docs(EVENTS, "default")}
    assert counts == {"a": 3, "b": 3, "c": 3}
    await story.end()


@virtual
async def test_long_names_and_messages_are_cut_to_what_the_server_takes():
    story = Story()
    about = ObjectReference(api_version="v1", kind="Pod", name="n" * 229 + "." + "x" * 20, namespace="default", uid="u")
    story.recorder.record(about, "Normal", "A", "m" * 5000)
    await asyncio.sleep(1)
    event = story.events()["A"]
    assert len(event["message"]) == 1024
    assert len(event["metadata"]["name"]) <= 253
    assert story.recorder.failed == 0
    await story.end()


@virtual
async def test_a_stop_in_the_middle_of_a_write_loses_nothing():
    faults = Faults(latency=(1.0, 1.0))
    story = Story(faults)
    story.recorder.record(JOB, "Normal", "A", "m")
    await asyncio.sleep(0.5)
    await story.end()
    await story.recorder.flush()
    assert set(story.events()) == {"A"}


@virtual
async def test_flush_writes_what_waits_and_gives_up_on_what_fails():
    story = Story()
    await story.end()
    for i in range(5):
        story.recorder.record(JOB, "Normal", "A", f"m{i}")
    await story.recorder.flush()
    assert len(story.server.docs(EVENTS, "default")) == 5
    story.api.cut()
    story.recorder.record(JOB, "Normal", "B", "m")
    began = asyncio.get_running_loop().time()
    await story.recorder.flush()
    assert asyncio.get_running_loop().time() - began < 6


@virtual
async def test_events_do_not_touch_the_object():
    story = Story()
    story.recorder.record(JOB, "Normal", "A", "m")
    await asyncio.sleep(1)
    assert {e.request.resource for e in story.server.audit} == {"events"}
    assert story.server.docs(PODS) == []
    await story.end()
