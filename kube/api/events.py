"""core/v1 Events: what `kubectl describe` shows. Deciders record and go on; a task of its own writes.

Messages hold no counters or times: equal (component, object, type, reason, message) is one Event whose count grows.
"""

from typing import Literal

import msgspec

from kube.api.api import Api
from kube.api.clock import Clock
from kube.objects.meta import ObjectMeta


class ObjectReference(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, kw_only=True):
    """involvedObject. uid is required: describe looks events up by it."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str
    resource_version: str = ""
    field_path: str = ""


def reference(api_version: str, kind: str, metadata: ObjectMeta) -> ObjectReference:
    """Of an object read from the API: `reference("kubeflow.org/v1", "PyTorchJob", job.metadata)`."""
    return ObjectReference(
        api_version=api_version, kind=kind, name=metadata.name, namespace=metadata.namespace, uid=metadata.uid
    )


class EventRecorder:
    """component: who speaks unless the event says otherwise ("muster-dispatcher"); instance: the process.

    At most `capacity` different events wait for the API server; more are dropped and counted.
    """

    def __init__(
        self,
        api: Api,
        clock: Clock,
        *,
        component: str,
        instance: str = "",
        capacity: int = 1000,
        remember: int = 4096,
        quiet_seconds: float = 10.0,
        call_seconds: float = 5.0,
    ) -> None:
        """remember: how many written events can still be counted up. quiet_seconds: least time between two
        writes of one event; repetitions are added up meanwhile."""
        self.dropped = 0
        self.failed = 0
        """Events given up because the API server refused them."""

    def record(
        self,
        regarding: ObjectReference,
        type_: Literal["Normal", "Warning"],
        reason: str,
        message: str,
        *,
        component: str = "",
    ) -> None:
        """Never blocks, never raises. `ScheduleBindingSucceed` is spoken by component="default-scheduler"."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Write what waits, then return (a clean stop, tests)."""
        raise NotImplementedError

    async def run(self) -> None:
        raise NotImplementedError
