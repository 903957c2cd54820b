"""Creating, reading, changing and deleting one object."""

from kube.api.api import CONFIG_MAPS, LEASES, NODES, Api, Resource
from kube.api.errors import AlreadyExists, Conflict, Invalid, NotFound, StatusError
from tests.contract.cases import (
    WIDGETS,
    case,
    config_map,
    create,
    decode,
    encode,
    gone,
    refused,
    version_of,
    watching,
    widget,
)


@case
async def create_gives_identity(api: Api, namespace: str) -> None:
    made = await create(api, CONFIG_MAPS, config_map("a", x="1"), namespace)
    metadata = made["metadata"]
    assert metadata["namespace"] == namespace
    assert metadata["uid"]
    assert metadata["resourceVersion"].isdecimal()
    assert metadata["creationTimestamp"].endswith("Z")
    assert "generation" not in metadata
    assert decode(await api.get(CONFIG_MAPS, "a", namespace)) == made
    with refused(AlreadyExists, 'configmaps "a" already exists'):
        await create(api, CONFIG_MAPS, config_map("a"), namespace)


@case
async def what_is_not_there(api: Api, namespace: str) -> None:
    with refused(NotFound, 'configmaps "a" not found'):
        await api.get(CONFIG_MAPS, "a", namespace)
    with refused(NotFound):
        await api.delete(CONFIG_MAPS, "a", namespace)
    with refused(NotFound):
        await api.patch(CONFIG_MAPS, "a", b"{}", namespace)
    with refused(NotFound):
        await create(api, CONFIG_MAPS, config_map("a"), "no-such-namespace")
    for group in ("contract.muster.dev", "no-such-group.muster.dev"):
        with refused(NotFound):
            await api.list(Resource(group, "v1", "nothings", "Nothing"), namespace)
    with refused(NotFound):
        lease = {"metadata": {"name": "a", "resourceVersion": "1"}, "spec": {}}
        await api.replace(WIDGETS, "a", encode(widget("a") | lease), namespace)


@case
async def bad_requests(api: Api, namespace: str) -> None:
    with refused(Invalid):
        await create(api, CONFIG_MAPS, config_map("Not_A_Name"), namespace)
    with refused(Invalid):
        await create(api, CONFIG_MAPS, config_map(""), namespace)
    with refused(Invalid):
        await create(api, CONFIG_MAPS, config_map("a") | {"kind": "Secret"}, namespace)
    with refused(Invalid):
        elsewhere = config_map("a") | {"metadata": {"name": "a", "namespace": "default"}}
        await create(api, CONFIG_MAPS, elsewhere, namespace)
    with refused(Invalid):
        await api.create(CONFIG_MAPS, b"{not json", namespace)
    with refused(StatusError, "resourceVersion should not be set"):
        versioned = config_map("a") | {"metadata": {"name": "a", "resourceVersion": "5"}}
        await create(api, CONFIG_MAPS, versioned, namespace)


@case
async def generated_names(api: Api, namespace: str) -> None:
    made = await create(api, CONFIG_MAPS, {"metadata": {"generateName": "root-"}}, namespace)
    assert len(made["metadata"]["name"]) == len("root-") + 5


@case
async def replace_needs_the_version_it_was_decided_on(api: Api, namespace: str) -> None:
    made = await create(api, CONFIG_MAPS, config_map("a", x="1"), namespace)
    changed = decode(await api.replace(CONFIG_MAPS, "a", encode(made | {"data": {"x": "2"}}), namespace))
    assert int(changed["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    assert changed["metadata"]["uid"] == made["metadata"]["uid"]
    with refused(Conflict):
        await api.replace(CONFIG_MAPS, "a", encode(made | {"data": {"x": "3"}}), namespace)
    assert decode(await api.get(CONFIG_MAPS, "a", namespace))["data"] == {"x": "2"}


@case
async def replace_of_another_incarnation_is_a_conflict(api: Api, namespace: str) -> None:
    made = await create(api, CONFIG_MAPS, config_map("a", x="1"), namespace)
    other = {"name": "a", "uid": "00000000-0000-4000-8000-000000000000"}
    with refused(Conflict):
        await api.replace(CONFIG_MAPS, "a", encode(made | {"metadata": other}), namespace)


@case
async def replace_without_a_version(api: Api, namespace: str) -> None:
    """Overwrites built-in kinds that allow it; custom kinds and Leases refuse."""
    await create(api, CONFIG_MAPS, config_map("a", x="1"), namespace)
    changed = decode(await api.replace(CONFIG_MAPS, "a", encode(config_map("a", x="2")), namespace))
    assert changed["data"] == {"x": "2"}
    await create(api, WIDGETS, widget("a", x=1), namespace)
    with refused(Invalid):
        await api.replace(WIDGETS, "a", encode(widget("a", x=2)), namespace)
    lease = {"metadata": {"name": "a"}, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 5}}
    await create(api, LEASES, lease, namespace)
    with refused(Invalid):
        await api.replace(LEASES, "a", encode(lease), namespace)


@case
async def a_write_that_changes_nothing_makes_no_version(api: Api, namespace: str) -> None:
    made = await create(api, WIDGETS, widget("a", x=1), namespace)
    version = made["metadata"]["resourceVersion"]
    same = decode(await api.replace(WIDGETS, "a", encode(made), namespace))
    assert same["metadata"]["resourceVersion"] == version
    same = decode(await api.patch(WIDGETS, "a", encode({"spec": {"x": 1}}), namespace))
    assert same["metadata"]["resourceVersion"] == version


@case
async def replace_keeps_what_is_the_servers(api: Api, namespace: str) -> None:
    made = await create(api, WIDGETS, widget("a", x=1), namespace)
    bare = {"name": "a", "resourceVersion": made["metadata"]["resourceVersion"]}
    changed = decode(await api.replace(WIDGETS, "a", encode(widget("a", x=2) | {"metadata": bare}), namespace))
    for field in ("uid", "creationTimestamp"):
        assert changed["metadata"][field] == made["metadata"][field]
    assert changed["metadata"]["generation"] == 2


@case
async def merge_patch_by_rfc_7386(api: Api, namespace: str) -> None:
    made = await create(api, WIDGETS, widget("a", x=1, deep={"k": 1, "gone": True}, listed=[1, 2]), namespace)
    patch = {"metadata": {"labels": {"l": "v"}}, "spec": {"x": None, "deep": {"gone": None, "new": 2}, "listed": [3]}}
    patched = decode(await api.patch(WIDGETS, "a", encode(patch), namespace))
    assert patched["spec"] == {"deep": {"k": 1, "new": 2}, "listed": [3]}
    assert patched["metadata"]["labels"] == {"l": "v"}
    stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "spec": {"x": 5}}
    with refused(Conflict):
        await api.patch(WIDGETS, "a", encode(stale), namespace)


@case
async def apply_owns_its_fields(api: Api, namespace: str) -> None:
    mine = widget("a", one=1, two={"deep": 2, "other": 3})
    made = decode(await api.apply(WIDGETS, "a", encode(mine), namespace))
    assert made["metadata"]["generation"] == 1
    await api.patch(WIDGETS, "a", encode({"spec": {"theirs": "kept"}}), namespace)
    applied = decode(await api.apply(WIDGETS, "a", encode(widget("a", two={"deep": 4})), namespace))
    # What we no longer say goes; what somebody else wrote stays.
    assert applied["spec"] == {"two": {"deep": 4}, "theirs": "kept"}
    again = decode(await api.apply(WIDGETS, "a", encode(widget("a", two={"deep": 4})), namespace))
    assert again["metadata"]["resourceVersion"] == applied["metadata"]["resourceVersion"]


@case
async def apply_of_status(api: Api, namespace: str) -> None:
    await create(api, WIDGETS, widget("a", x=1), namespace)
    body = {"apiVersion": WIDGETS.api_version, "kind": "Widget", "metadata": {"name": "a"}, "status": {"phase": "Up"}}
    applied = decode(await api.apply(WIDGETS, "a", encode(body), namespace, subresource="status"))
    assert applied["status"] == {"phase": "Up"}
    assert applied["spec"] == {"x": 1}


@case
async def status_is_apart(api: Api, namespace: str) -> None:
    made = await create(api, WIDGETS, widget("a", x=1) | {"status": {"phase": "Faked"}}, namespace)
    assert "status" not in made
    assert made["metadata"]["generation"] == 1
    wanted = made | {"status": {"phase": "Up"}, "spec": {"x": 99}}
    wanted["metadata"] = made["metadata"] | {"labels": {"l": "v"}}
    with_status = decode(await api.replace(WIDGETS, "a", encode(wanted), namespace, subresource="status"))
    assert with_status["status"] == {"phase": "Up"}
    assert with_status["spec"] == {"x": 1}
    assert "labels" not in with_status["metadata"]
    assert with_status["metadata"]["generation"] == 1
    wanted = with_status | {"status": {"phase": "Down"}, "spec": {"x": 2}}
    with_spec = decode(await api.replace(WIDGETS, "a", encode(wanted), namespace))
    assert with_spec["status"] == {"phase": "Up"}
    assert with_spec["spec"] == {"x": 2}
    assert with_spec["metadata"]["generation"] == 2
    patched = decode(await api.patch(WIDGETS, "a", encode({"status": {"n": 1}}), namespace, subresource="status"))
    assert patched["status"] == {"phase": "Up", "n": 1}
    with refused(Conflict):
        await api.replace(WIDGETS, "a", encode(made | {"status": {}}), namespace, subresource="status")
    with refused(NotFound):
        await api.replace(CONFIG_MAPS, "a", b"{}", namespace, subresource="status")


@case
async def labels_do_not_raise_the_generation(api: Api, namespace: str) -> None:
    await create(api, WIDGETS, widget("a", x=1), namespace)
    labelled = decode(await api.patch(WIDGETS, "a", encode({"metadata": {"labels": {"l": "v"}}}), namespace))
    assert labelled["metadata"]["generation"] == 1


@case
async def delete_with_preconditions(api: Api, namespace: str) -> None:
    made = await create(api, CONFIG_MAPS, config_map("a", x="1"), namespace)
    with refused(Conflict):
        await api.delete(CONFIG_MAPS, "a", namespace, uid="00000000-0000-4000-8000-000000000000")
    changed = decode(await api.patch(CONFIG_MAPS, "a", encode({"data": {"x": "2"}}), namespace))
    with refused(Conflict):
        await api.delete(CONFIG_MAPS, "a", namespace, resource_version=made["metadata"]["resourceVersion"])
    await api.delete(
        CONFIG_MAPS,
        "a",
        namespace,
        uid=made["metadata"]["uid"],
        resource_version=changed["metadata"]["resourceVersion"],
    )
    assert await gone(api, CONFIG_MAPS, "a", namespace)
    again = await create(api, CONFIG_MAPS, config_map("a"), namespace)
    assert again["metadata"]["uid"] != made["metadata"]["uid"]


@case
async def finalizers_hold_an_object(api: Api, namespace: str) -> None:
    held = widget("a", x=1)
    held["metadata"]["finalizers"] = ["muster.dev/cleanup"]
    await create(api, WIDGETS, held, namespace)
    start = await version_of(api, WIDGETS, namespace)
    async with watching(api, WIDGETS, namespace, start) as seen:
        await api.delete(WIDGETS, "a", namespace)
        there = decode(await api.get(WIDGETS, "a", namespace))
        assert there["metadata"]["deletionTimestamp"]
        assert there["metadata"]["generation"] == 2
        first = there["metadata"]["resourceVersion"]
        await api.delete(WIDGETS, "a", namespace)
        assert decode(await api.get(WIDGETS, "a", namespace))["metadata"]["resourceVersion"] == first
        with refused(Invalid):
            more = {"metadata": {"finalizers": ["muster.dev/cleanup", "example.com/more"]}}
            await api.patch(WIDGETS, "a", encode(more), namespace)
        with refused(AlreadyExists):
            await create(api, WIDGETS, widget("a"), namespace)
        await api.patch(WIDGETS, "a", encode({"metadata": {"finalizers": None}}), namespace)
        assert await gone(api, WIDGETS, "a", namespace)
        assert await seen.types(2) == ["MODIFIED", "DELETED"]


@case
async def nodes_keep_the_status_they_are_made_with(api: Api, namespace: str) -> None:
    name = f"{namespace}-node"
    node = {"metadata": {"name": name}, "status": {"capacity": {"cpu": "8"}, "allocatable": {"cpu": "8"}}}
    made = await create(api, NODES, node, "")
    try:
        assert made["status"]["allocatable"] == {"cpu": "8"}
        assert "namespace" not in made["metadata"]
    finally:
        await api.delete(NODES, name)


@case
async def raw_paths(api: Api, namespace: str) -> None:
    assert decode(await api.read_path("/version"))["gitVersion"].startswith("v1.")
    assert await api.read_path("/readyz") == b"ok"
    with refused(NotFound):
        await api.read_path("/no/such/path")
