"""The bindings as this dispatcher knows them: the watch, and its own writes before the watch shows them.

Keyed by (namespace, job name). A PUT's answer counts at once, so that no step is decided on what was true before it;
a watch event older than that answer is ignored (resourceVersions of one resource are ordered, KEP-5504).
"""

from collections.abc import Callable, Iterator

from kube.api.reflector import Change
from kube.objects.binding import ResourceBinding

Key = tuple[str, str]
Listener = Callable[[Key, ResourceBinding | None, ResourceBinding | None], None]
"""(key, old, new); None: not there."""


class BindingStore:
    def __init__(self) -> None:
        self._known: dict[Key, ResourceBinding] = {}
        self._by_id: dict[str, Key] = {}
        self._removed: dict[str, int] = {}
        """uid -> resourceVersion, of bindings we removed and the watch has not told about yet."""
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def get(self, key: Key) -> ResourceBinding | None:
        return self._known.get(key)

    def by_id(self, job_id: str) -> ResourceBinding | None:
        key = self._by_id.get(job_id)
        return self._known.get(key) if key else None

    def key_of(self, job_id: str) -> Key | None:
        return self._by_id.get(job_id)

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[ResourceBinding]:
        return iter(self._known.values())

    def on_watch(self, change: Change, old: ResourceBinding | None, new: ResourceBinding | None) -> None:
        """Handler for the bindings' reflector."""
        if new is not None:
            self.put(new)
        elif old is not None and change is Change.DELETED:
            self._removed.pop(old.metadata.uid, None)
            known = self._known.get(_key(old))
            if known is not None and known.metadata.uid == old.metadata.uid:
                self._drop(_key(old))

    def put(self, binding: ResourceBinding) -> None:
        """From a watch, a read, or the answer to our own write: the newest wins."""
        if binding.metadata.uid in self._removed:
            return
        key = _key(binding)
        known = self._known.get(key)
        if known is not None:
            if known.metadata.uid == binding.metadata.uid and _version(known) >= _version(binding):
                return
            self._by_id.pop(known.spec.job_id, None)
        self._known[key] = binding
        self._by_id[binding.spec.job_id] = key
        for listener in self._listeners:
            listener(key, known, binding)

    def removed(self, binding: ResourceBinding) -> None:
        """Our own DELETE succeeded, or a live read found it gone."""
        known = self._known.get(_key(binding))
        if known is not None and known.metadata.uid == binding.metadata.uid:
            self._removed[binding.metadata.uid] = _version(known)
            self._drop(_key(binding))

    def _drop(self, key: Key) -> None:
        old = self._known.pop(key)
        self._by_id.pop(old.spec.job_id, None)
        for listener in self._listeners:
            listener(key, old, None)


def _key(binding: ResourceBinding) -> Key:
    return (binding.metadata.namespace, binding.spec.job.name)


def _version(binding: ResourceBinding) -> int:
    version = binding.metadata.resource_version
    return int(version) if version.isdecimal() else 0
