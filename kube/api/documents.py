"""List pages and watch lines as they travel, decoded no further than the next reader needs."""

from typing import Generic, TypeVar

import msgspec

from kube.objects.meta import ObjectMeta

T = TypeVar("T")


class ListMeta(msgspec.Struct):
    """metav1.ListMeta; `continue` is a keyword, so it is renamed."""

    resource_version: str = msgspec.field(name="resourceVersion", default="")
    continue_token: str = msgspec.field(name="continue", default="")


class Page(msgspec.Struct, Generic[T]):
    """One page of a List. items: null and absent mean none."""

    metadata: ListMeta
    items: list[T] | None = None


class RawPage(msgspec.Struct):
    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class MetadataOnly(msgspec.Struct):
    """Any object, by its metadata alone (bookmarks; objects that do not decode)."""

    metadata: ObjectMeta


class WatchEvent(msgspec.Struct):
    type: str
    """ADDED, MODIFIED, DELETED, BOOKMARK, ERROR."""
    object: msgspec.Raw


class Status(msgspec.Struct):
    """metav1.Status."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: "StatusDetails | None" = None


class StatusDetails(msgspec.Struct):
    retry_after_seconds: float = msgspec.field(name="retryAfterSeconds", default=0)


raw_page = msgspec.json.Decoder(RawPage)
metadata_only = msgspec.json.Decoder(MetadataOnly)
watch_event = msgspec.json.Decoder(WatchEvent)
status = msgspec.json.Decoder(Status)
