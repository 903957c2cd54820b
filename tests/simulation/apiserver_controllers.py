"""What kube-controller-manager does to objects: collects what owners leave behind and empties namespaces."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random

from kube.api.api import NAMESPACES, Resource
from kube.api.errors import ApiError
from tests.simulation.apiserver import NS, ApiServer
from tests.simulation.apiserver_store import Change, Doc, Key, Kind, copied


class Controllers:
    """Garbage collection and namespace deletion, each `delay_seconds` (drawn between them) after their cause."""

    def __init__(
        self, server: ApiServer, rng: Random | None = None, delay_seconds: tuple[float, float] = (0.01, 0.5)
    ) -> None:
        self._server = server
        self._rng = rng or Random(0)
        self._delay = delay_seconds
        self._due = asyncio.Event()
        server.observe(self._observe)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.ensure_future(self.run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def run(self) -> None:
        self._due.set()
        while True:
            await self._due.wait()
            self._due.clear()
            await asyncio.sleep(self._rng.uniform(*self._delay))
            self.step()

    def step(self) -> None:
        """All that is due now."""
        everything = self._everything()
        live = {doc["metadata"]["uid"]: doc for _, _, doc in everything}
        dependents: dict[str, list[tuple[Kind, Key, Doc]]] = {}
        for kind, key, doc in everything:
            for owner in doc["metadata"].get("ownerReferences") or ():
                dependents.setdefault(owner["uid"], []).append((kind, key, doc))
        for kind, key, doc in everything:
            self._collect_orphaned(kind, key, doc, live)
            if doc["metadata"].get("deletionTimestamp"):
                self._finish_deletion(kind, key, doc, dependents.get(doc["metadata"]["uid"], []))
        for doc in self._server.docs(NAMESPACES):
            if doc["metadata"].get("deletionTimestamp"):
                self._empty(doc["metadata"]["name"])

    def _observe(self, change: Change) -> None:
        metadata = change.last.doc["metadata"]
        if change.new is None or metadata.get("deletionTimestamp") or metadata.get("ownerReferences"):
            self._due.set()

    def _everything(self) -> list[tuple[Kind, Key, Doc]]:
        store = self._server.store
        return [(kind, key, stored.doc) for kind in store.kinds() for key, stored in store.all(kind)]

    def _collect_orphaned(self, kind: Kind, key: Key, doc: Doc, live: dict[str, Doc]) -> None:
        """A dependent goes when every owner is gone or is being deleted in the foreground."""
        metadata = doc["metadata"]
        owners = metadata.get("ownerReferences") or []
        leaving = [o for o in owners if o["uid"] not in live or "foregroundDeletion" in _finalizers(live[o["uid"]])]
        if owners and len(leaving) == len(owners) and not metadata.get("deletionTimestamp"):
            self._delete(kind, key, metadata["uid"])

    def _finish_deletion(self, kind: Kind, key: Key, doc: Doc, dependents: list[tuple[Kind, Key, Doc]]) -> None:
        uid, finalizers = doc["metadata"]["uid"], _finalizers(doc)
        if "orphan" in finalizers:
            for other_kind, other_key, other in dependents:
                kept = [owner for owner in other["metadata"]["ownerReferences"] if owner["uid"] != uid]
                self._write(other_kind, other_key, {"ownerReferences": kept or None})
            self._write(kind, key, {"finalizers": [f for f in finalizers if f != "orphan"] or None})
        elif "foregroundDeletion" in finalizers and not dependents:
            self._write(kind, key, {"finalizers": [f for f in finalizers if f != "foregroundDeletion"] or None})

    def _empty(self, namespace: str) -> None:
        left = 0
        for kind, key, doc in self._everything():
            if key[0] == namespace and kind != NS:
                if not doc["metadata"].get("deletionTimestamp"):
                    self._delete(kind, key, doc["metadata"]["uid"])
                left += self._server.store.get(kind, key) is not None
        if not left:
            self._server.finish_namespace(namespace)

    def _delete(self, kind: Kind, key: Key, uid: str) -> None:
        try:
            self._server.delete(self._resource(kind), key[1], key[0], uid=uid)
        except ApiError:
            self._due.set()  # it changed under our hands: look again

    def _write(self, kind: Kind, key: Key, metadata: Doc) -> None:
        try:
            self._server.patch(self._resource(kind), key[1], {"metadata": copied(metadata)}, key[0])
        except ApiError:
            self._due.set()

    def _resource(self, kind: Kind) -> Resource:
        return self._server.served(kind)


def _finalizers(doc: Doc) -> list[str]:
    return list(doc.get("metadata", {}).get("finalizers") or ())
