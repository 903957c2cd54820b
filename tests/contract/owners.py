"""What kube-controller-manager does: dependents of deleted owners, emptied namespaces."""

from typing import Any

from kube.api.api import CONFIG_MAPS, NAMESPACES, Api
from kube.api.errors import Forbidden
from tests.contract.cases import (
    WIDGETS,
    case_with_controllers,
    config_map,
    create,
    decode,
    encode,
    eventually,
    gone,
    refused,
    widget,
)


def owned(name: str, owner: Any) -> dict[str, Any]:
    made = config_map(name)
    made["metadata"]["ownerReferences"] = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    return made


@case_with_controllers
async def dependents_follow_their_owner(api: Api, namespace: str) -> None:
    owner = await create(api, WIDGETS, widget("owner"), namespace)
    await create(api, CONFIG_MAPS, owned("child", owner), namespace)
    await api.delete(WIDGETS, "owner", namespace)
    assert await gone(api, WIDGETS, "owner", namespace), "background: the owner goes first"
    await eventually(lambda: gone(api, CONFIG_MAPS, "child", namespace))


@case_with_controllers
async def in_the_foreground_the_owner_goes_last(api: Api, namespace: str) -> None:
    owner = await create(api, WIDGETS, widget("owner"), namespace)
    child = owned("child", owner)
    child["metadata"]["finalizers"] = ["example.com/held"]
    await create(api, CONFIG_MAPS, child, namespace)
    await api.delete(WIDGETS, "owner", namespace, propagation="Foreground")
    there = decode(await api.get(WIDGETS, "owner", namespace))
    assert there["metadata"]["finalizers"] == ["foregroundDeletion"]

    async def child_leaving() -> bool:
        return "deletionTimestamp" in decode(await api.get(CONFIG_MAPS, "child", namespace))["metadata"]

    await eventually(child_leaving)
    assert not await gone(api, WIDGETS, "owner", namespace)
    await api.patch(CONFIG_MAPS, "child", encode({"metadata": {"finalizers": None}}), namespace)
    await eventually(lambda: gone(api, WIDGETS, "owner", namespace))


@case_with_controllers
async def orphans_stay(api: Api, namespace: str) -> None:
    owner = await create(api, WIDGETS, widget("owner"), namespace)
    await create(api, CONFIG_MAPS, owned("child", owner), namespace)
    await api.delete(WIDGETS, "owner", namespace, propagation="Orphan")
    await eventually(lambda: gone(api, WIDGETS, "owner", namespace))
    child = decode(await api.get(CONFIG_MAPS, "child", namespace))
    assert "ownerReferences" not in child["metadata"]


@case_with_controllers
async def a_child_of_nobody_is_collected(api: Api, namespace: str) -> None:
    owner = await create(api, WIDGETS, widget("owner"), namespace)
    await api.delete(WIDGETS, "owner", namespace)
    await create(api, CONFIG_MAPS, owned("late", owner), namespace)
    await eventually(lambda: gone(api, CONFIG_MAPS, "late", namespace))


@case_with_controllers
async def a_deleted_namespace_is_emptied(api: Api, namespace: str) -> None:
    name = f"{namespace}-x"
    await api.create(NAMESPACES, encode({"metadata": {"name": name}}))
    held = config_map("a")
    held["metadata"]["finalizers"] = ["example.com/held"]
    await create(api, CONFIG_MAPS, held, name)
    await create(api, CONFIG_MAPS, config_map("b"), name)
    await api.delete(NAMESPACES, name)
    with refused(Forbidden, "terminated"):
        await create(api, CONFIG_MAPS, config_map("c"), name)
    await eventually(lambda: gone(api, CONFIG_MAPS, "b", name))
    assert decode(await api.get(NAMESPACES, name))["status"]["phase"] == "Terminating"
    await api.patch(CONFIG_MAPS, "a", encode({"metadata": {"finalizers": None}}), name)
    await eventually(lambda: gone(api, NAMESPACES, name))
