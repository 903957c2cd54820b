"""Lists, pages, selectors and watches."""

import asyncio

from kube.api.api import CONFIG_MAPS, Api
from kube.api.errors import Gone, Invalid
from tests.contract.cases import (
    WIDGETS,
    case,
    config_map,
    create,
    decode,
    encode,
    names,
    refused,
    version_of,
    watching,
    widget,
)


def labelled(name, **labels):
    made = widget(name, x=1)
    made["metadata"]["labels"] = labels
    return made


@case
async def lists_are_sorted_and_versioned(api: Api, namespace: str) -> None:
    empty = decode(await api.list(WIDGETS, namespace))
    assert empty["items"] == []
    for name in ("b", "a", "c"):
        await create(api, WIDGETS, widget(name), namespace)
    full = decode(await api.list(WIDGETS, namespace))
    assert [item["metadata"]["name"] for item in full["items"]] == ["a", "b", "c"]
    assert int(full["metadata"]["resourceVersion"]) > int(empty["metadata"]["resourceVersion"])
    newest = max(int(item["metadata"]["resourceVersion"]) for item in full["items"])
    assert int(full["metadata"]["resourceVersion"]) >= newest
    assert full["items"][0]["kind"] == "Widget"
    assert "a" in await names(api, WIDGETS, "")


@case
async def items_of_built_in_lists_do_not_say_what_they_are(api: Api, namespace: str) -> None:
    await create(api, CONFIG_MAPS, config_map("a"), namespace)
    item = next(i for i in decode(await api.list(CONFIG_MAPS, namespace))["items"] if i["metadata"]["name"] == "a")
    assert "kind" not in item
    assert "apiVersion" not in item


@case
async def pages_show_one_moment(api: Api, namespace: str) -> None:
    for name in ("a", "b", "c", "d", "e"):
        await create(api, WIDGETS, widget(name), namespace)
    first = decode(await api.list(WIDGETS, namespace, limit=2))
    await create(api, WIDGETS, widget("bb"), namespace)
    await api.delete(WIDGETS, "e", namespace)
    pages, token = [first], first["metadata"]["continue"]
    while token:
        page = decode(await api.list(WIDGETS, namespace, limit=2, continue_token=token))
        pages.append(page)
        token = page["metadata"].get("continue", "")
    found = [[item["metadata"]["name"] for item in page["items"]] for page in pages]
    assert found == [["a", "b"], ["c", "d"], ["e"]]
    assert len({page["metadata"]["resourceVersion"] for page in pages}) == 1
    assert await names(api, WIDGETS, namespace) == ["a", "b", "bb", "c", "d"]


@case
async def label_selectors(api: Api, namespace: str) -> None:
    await create(api, WIDGETS, labelled("a", color="red", size="1"), namespace)
    await create(api, WIDGETS, labelled("b", color="blue"), namespace)
    await create(api, WIDGETS, widget("c"), namespace)
    for selector, expected in (
        ("color=red", ["a"]),
        ("color==red", ["a"]),
        ("color!=red", ["b", "c"]),
        ("color in (red, blue)", ["a", "b"]),
        ("color notin (red)", ["b", "c"]),
        ("color", ["a", "b"]),
        ("!color", ["c"]),
        ("color,size", ["a"]),
        ("color in (red,blue),!size", ["b"]),
        ("color=", []),
    ):
        assert await names(api, WIDGETS, namespace, label_selector=selector) == expected, selector
    with refused(Invalid):
        await api.list(WIDGETS, namespace, label_selector="color in")


@case
async def field_selectors(api: Api, namespace: str) -> None:
    for name in ("a", "b"):
        await create(api, WIDGETS, widget(name), namespace)
    assert await names(api, WIDGETS, namespace, field_selector="metadata.name=a") == ["a"]
    assert await names(api, WIDGETS, namespace, field_selector="metadata.name!=a") == ["b"]
    assert await names(api, WIDGETS, "", field_selector=f"metadata.namespace={namespace}") == ["a", "b"]
    with refused(Invalid):
        await api.list(WIDGETS, namespace, field_selector="spec.x=1")


@case
async def a_watch_tells_what_happens(api: Api, namespace: str) -> None:
    start = await version_of(api, WIDGETS, namespace)
    async with watching(api, WIDGETS, namespace, start) as seen:
        made = await create(api, WIDGETS, widget("a", x=1), namespace)
        changed = decode(await api.patch(WIDGETS, "a", encode({"spec": {"x": 2}}), namespace))
        await api.patch(WIDGETS, "a", encode({"spec": {"x": 2}}), namespace)
        await api.delete(WIDGETS, "a", namespace)
        again = await create(api, WIDGETS, widget("a", x=3), namespace)
        events = [await seen.next() for _ in range(4)]
    assert [kind for kind, _ in events] == ["ADDED", "MODIFIED", "DELETED", "ADDED"]
    shown = [obj["metadata"] for _, obj in events]
    assert shown[0]["resourceVersion"] == made["metadata"]["resourceVersion"]
    assert shown[1]["resourceVersion"] == changed["metadata"]["resourceVersion"]
    assert int(shown[2]["resourceVersion"]) > int(shown[1]["resourceVersion"]), "a deletion has a version of its own"
    assert events[2][1]["spec"] == {"x": 2}
    assert shown[3]["uid"] == again["metadata"]["uid"] != shown[2]["uid"]


@case
async def a_watch_resumes_where_it_was(api: Api, namespace: str) -> None:
    made = await create(api, WIDGETS, widget("a", x=1), namespace)
    await api.patch(WIDGETS, "a", encode({"spec": {"x": 2}}), namespace)
    await api.delete(WIDGETS, "a", namespace)
    async with watching(api, WIDGETS, namespace, made["metadata"]["resourceVersion"]) as seen:
        assert await seen.types(2) == ["MODIFIED", "DELETED"]


@case
async def a_watch_of_one_namespace(api: Api, namespace: str) -> None:
    start = await version_of(api, CONFIG_MAPS, namespace)
    other = f"{namespace}-elsewhere"
    try:
        async with watching(
            api, CONFIG_MAPS, namespace, start, field_selector="metadata.name!=kube-root-ca.crt"
        ) as seen:
            await create(api, CONFIG_MAPS, config_map(other), "default")
            await create(api, CONFIG_MAPS, config_map("mine"), namespace)
            assert (await seen.next())[1]["metadata"]["name"] == "mine"
    finally:
        await api.delete(CONFIG_MAPS, other, "default")


@case
async def a_watch_with_a_selector_sees_objects_come_and_go(api: Api, namespace: str) -> None:
    start = await version_of(api, WIDGETS, namespace)
    async with watching(api, WIDGETS, namespace, start, label_selector="color=red") as seen:
        await create(api, WIDGETS, labelled("a", color="blue"), namespace)
        for color in ("red", "red2", "red"):
            await api.patch(WIDGETS, "a", encode({"metadata": {"labels": {"color": color}}}), namespace)
        await api.patch(WIDGETS, "a", encode({"spec": {"x": 2}}), namespace)
        await api.delete(WIDGETS, "a", namespace)
        events = [await seen.next() for _ in range(5)]
    assert [kind for kind, _ in events] == ["ADDED", "DELETED", "ADDED", "MODIFIED", "DELETED"]
    # Out of the selector: as it was when it was in, with the version of the change.
    assert events[1][1]["metadata"]["labels"] == {"color": "red"}
    assert int(events[1][1]["metadata"]["resourceVersion"]) > int(events[0][1]["metadata"]["resourceVersion"])


@case
async def a_watch_from_nowhere_begins_with_what_is_there(api: Api, namespace: str) -> None:
    await create(api, WIDGETS, widget("a"), namespace)
    async with watching(api, WIDGETS, namespace, "0") as seen:
        assert await seen.types(1) == ["ADDED"]
        await api.delete(WIDGETS, "a", namespace)
        assert await seen.types(1) == ["DELETED"]


@case
async def a_watch_from_too_long_ago_is_gone(api: Api, namespace: str) -> None:
    """Version 1 is older than the kind itself."""
    try:
        async with watching(api, WIDGETS, namespace, "1") as seen:
            kind, status = await seen.next()
    except Gone:
        return
    assert kind == "ERROR"
    assert status["code"] == 410


@case
async def a_watch_from_the_future_is_silent(api: Api, namespace: str) -> None:
    """Why a reflector asks before it resumes: after a restore from backup its version may be of the future."""
    start = await version_of(api, WIDGETS, namespace)
    async with watching(api, WIDGETS, namespace, str(int(start) + 100_000)) as seen:
        await create(api, WIDGETS, widget("a"), namespace)
        waiting = asyncio.ensure_future(seen.next())
        done, _ = await asyncio.wait([waiting], timeout=3.0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not done
