"""Pods: defaults, bindings, graceful deletion, eviction."""

from kube.api.api import PODS, Api
from kube.api.errors import Conflict, Invalid, NotFound
from tests.contract.cases import (
    binding,
    case,
    create,
    decode,
    encode,
    gone,
    names,
    pod,
    refused,
    version_of,
    watching,
)


@case
async def pods_are_made_pending_with_defaults(api: Api, namespace: str) -> None:
    wanted = pod("a") | {"status": {"phase": "Running"}}
    wanted["spec"]["containers"][0]["resources"] = {
        "limits": {"cpu": "1", "memory": "1Gi"},
        "requests": {"cpu": "500m"},
    }
    made = await create(api, PODS, wanted, namespace)
    assert made["status"]["phase"] == "Pending"
    assert made["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "500m", "memory": "1Gi"}
    assert made["spec"]["priority"] == 0
    assert made["spec"]["preemptionPolicy"] == "PreemptLowerPriority"
    assert made["spec"]["restartPolicy"] == "Always"
    assert made["spec"]["terminationGracePeriodSeconds"] == 30


@case
async def a_binding_places_a_pod_once(api: Api, namespace: str) -> None:
    made = await create(api, PODS, pod("a"), namespace)
    uid = made["metadata"]["uid"]
    with refused(Conflict, "Precondition failed"):
        await api.create(
            PODS,
            binding("a", "node-1", "00000000-0000-4000-8000-000000000000"),
            namespace,
            name="a",
            subresource="binding",
        )
    await api.create(PODS, binding("a", "node-1", uid), namespace, name="a", subresource="binding")
    bound = decode(await api.get(PODS, "a", namespace))
    assert bound["spec"]["nodeName"] == "node-1"
    scheduled = [c["status"] for c in bound["status"]["conditions"] if c["type"] == "PodScheduled"]
    assert scheduled == ["True"]
    for node in ("node-1", "node-2"):
        with refused(Conflict, "already assigned"):
            await api.create(PODS, binding("a", node, uid), namespace, name="a", subresource="binding")
    with refused(NotFound):
        await api.create(PODS, binding("b", "node-1"), namespace, name="b", subresource="binding")
    assert await names(api, PODS, namespace, field_selector="spec.nodeName=node-1") == ["a"]
    assert await names(api, PODS, namespace, field_selector="spec.nodeName=") == []
    await api.delete(PODS, "a", namespace, grace_seconds=0)


@case
async def a_gated_pod_is_not_bound(api: Api, namespace: str) -> None:
    await create(api, PODS, pod("a", schedulingGates=[{"name": "example.com/gate"}]), namespace)
    with refused(Conflict, "schedulingGates"):
        await api.create(PODS, binding("a", "node-1"), namespace, name="a", subresource="binding")
    await api.patch(PODS, "a", encode({"spec": {"schedulingGates": None}}), namespace)
    await api.create(PODS, binding("a", "node-1"), namespace, name="a", subresource="binding")
    await api.delete(PODS, "a", namespace, grace_seconds=0)


@case
async def a_pods_spec_is_fixed(api: Api, namespace: str) -> None:
    await create(api, PODS, pod("a"), namespace)
    for change in ({"nodeName": "node-1"}, {"priority": 7}, {"nodeSelector": {"a": "b"}}, {"schedulerName": "other"}):
        with refused(Invalid):
            await api.patch(PODS, "a", encode({"spec": change}), namespace)


@case
async def a_pod_without_a_node_is_deleted_at_once(api: Api, namespace: str) -> None:
    await create(api, PODS, pod("a"), namespace)
    await api.delete(PODS, "a", namespace)
    assert await gone(api, PODS, "a", namespace)


@case
async def a_pod_on_a_node_leaves_gracefully(api: Api, namespace: str) -> None:
    await create(api, PODS, pod("a"), namespace)
    await api.create(PODS, binding("a", "node-1"), namespace, name="a", subresource="binding")
    await api.delete(PODS, "a", namespace)
    leaving = decode(await api.get(PODS, "a", namespace))
    assert leaving["metadata"]["deletionGracePeriodSeconds"] == 30
    assert leaving["metadata"]["deletionTimestamp"]
    with refused(Conflict):
        await api.create(PODS, binding("a", "node-1"), namespace, name="a", subresource="binding")
    await api.delete(PODS, "a", namespace, grace_seconds=0)
    assert await gone(api, PODS, "a", namespace)


@case
async def a_leaving_pod_is_not_bound(api: Api, namespace: str) -> None:
    held = pod("a")
    held["metadata"]["finalizers"] = ["muster.dev/cleanup"]
    await create(api, PODS, held, namespace)
    await api.delete(PODS, "a", namespace)
    with refused(Conflict, "being deleted"):
        await api.create(PODS, binding("a", "node-1"), namespace, name="a", subresource="binding")
    await api.patch(PODS, "a", encode({"metadata": {"finalizers": None}}), namespace)
    assert await gone(api, PODS, "a", namespace)


@case
async def an_ended_pod_is_deleted_at_once(api: Api, namespace: str) -> None:
    await create(api, PODS, pod("a"), namespace)
    await api.create(PODS, binding("a", "node-1"), namespace, name="a", subresource="binding")
    await api.patch(PODS, "a", encode({"status": {"phase": "Succeeded"}}), namespace, subresource="status")
    await api.delete(PODS, "a", namespace)
    assert await gone(api, PODS, "a", namespace)


@case
async def a_watch_by_phase_loses_what_ends(api: Api, namespace: str) -> None:
    start = await version_of(api, PODS, namespace)
    query = "status.phase!=Succeeded,status.phase!=Failed"
    async with watching(api, PODS, namespace, start, field_selector=query) as seen:
        await create(api, PODS, pod("a"), namespace)
        await api.patch(PODS, "a", encode({"status": {"phase": "Succeeded"}}), namespace, subresource="status")
        events = [await seen.next(), await seen.next()]
    assert [kind for kind, _ in events] == ["ADDED", "DELETED"]
    assert events[1][1]["status"]["phase"] == "Pending", "the state it had within the selector"
    await api.delete(PODS, "a", namespace)


@case
async def an_eviction_deletes_gracefully(api: Api, namespace: str) -> None:
    made = await create(api, PODS, pod("a"), namespace)
    await api.create(PODS, binding("a", "node-1"), namespace, name="a", subresource="binding")

    def eviction(uid: str) -> bytes:
        return encode(
            {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": "a", "namespace": namespace},
                "deleteOptions": {"preconditions": {"uid": uid}},
            }
        )

    with refused(Conflict):
        # The server retries this one 20 times, half a second apart (registry/core/pod/storage, EvictionsRetry).
        other = eviction("00000000-0000-4000-8000-000000000000")
        await api.create(PODS, other, namespace, name="a", subresource="eviction", timeout=30)
    await api.create(PODS, eviction(made["metadata"]["uid"]), namespace, name="a", subresource="eviction")
    assert decode(await api.get(PODS, "a", namespace))["metadata"]["deletionGracePeriodSeconds"] == 30
    await api.delete(PODS, "a", namespace, grace_seconds=0)
    with refused(NotFound):
        await api.create(PODS, eviction(""), namespace, name="a", subresource="eviction")
