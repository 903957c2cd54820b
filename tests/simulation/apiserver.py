"""An API server in memory: every verb is one synchronous step, so each is atomic and interleavings are whole calls.

`tests.simulation.apiserver_client.SimulatedApi` puts time, faults and an identity in front of it. What it does is
held against a real kube-apiserver by the cases of tests/contract.
"""

import asyncio
import uuid
from collections.abc import Callable, Iterable
from datetime import timedelta
from random import Random
from typing import Any, NamedTuple

import msgspec

from kube.api import api as resources
from kube.api.api import CRDS, NAMESPACES, Resource
from tests.simulation.apiserver_apply import apply, merge_patch
from tests.simulation.apiserver_rules import (
    PODS,
    UNCONDITIONAL_UPDATE,
    bound,
    check_name,
    grace_seconds,
    has_status,
    is_custom,
    prepare_create,
    prepare_update,
    refuse,
)
from tests.simulation.apiserver_selectors import BadSelector, field_matcher, label_matcher
from tests.simulation.apiserver_store import Backup, Change, Doc, Expired, Key, Kind, Store, Stored, copied, kind_of
from tests.simulation.apiserver_watch import Watcher
from tests.simulation.clock import VirtualClock

NS: Kind = ("", "namespaces")
ALL_RESOURCES = tuple(value for value in vars(resources).values() if isinstance(value, Resource))
FIRST_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
KEPT_PAGES = 200
"""Unfinished paged lists a server remembers; older tokens expire."""


class Request(NamedTuple):
    """For authorization and the audit log."""

    user: str
    verb: str
    """get, list, watch, create, update, patch, delete."""
    group: str
    resource: str
    """With its subresource: "pods", "pods/binding"."""
    namespace: str
    name: str


class Audited(NamedTuple):
    at: float
    request: Request
    outcome: str
    """"ok", or the class of the refusal: "Conflict"."""


class ApiServer:
    """authorize: says whether a request is allowed; None allows everything."""

    def __init__(
        self,
        name: str = "cluster",
        *,
        rng: Random | None = None,
        clock: VirtualClock | None = None,
        namespaces: Iterable[str] = ("muster-system", "kube-queue"),
        served: Iterable[Resource] = ALL_RESOURCES,
        authorize: Callable[[Request], bool] | None = None,
        revision: int = 1000,
    ) -> None:
        self.name = name
        self.clock = clock or VirtualClock()
        self.authorize = authorize
        self.available = True
        """False: connections are refused."""
        self.stopped = False
        """True (SIGSTOP): requests wait, and are handled when it goes on, whether or not anybody still waits."""
        self.goes_on = asyncio.Event()
        self.backlog: list[Callable[[], None]] = []
        self.audit: list[Audited] = []
        self.store = Store(revision)
        self.watchers: list[Watcher] = []
        self._rng = rng or Random(0)
        self._served: dict[Kind, Resource] = {kind_of(resource): resource for resource in served}
        self._pages: dict[str, tuple[int, list[bytes]]] = {}
        self._applied: dict[tuple[str, str, str], Doc] = {}
        self.store.listen(self._show)
        for namespace in (*FIRST_NAMESPACES, *namespaces):
            self.create(NAMESPACES, {"metadata": {"name": namespace}}, "")

    # For tests ----------------------------------------------------------------------------------------------------

    def observe(self, observer: Callable[[Change], None]) -> None:
        """Called within each write: invariants are watched, not polled."""
        self.store.listen(observer)

    def docs(self, resource: Resource, namespace: str = "") -> list[Doc]:
        """Copies, in list order."""
        return [copied(stored.doc) for _, stored in self.store.all(kind_of(resource), namespace)]

    def doc(self, resource: Resource, name: str, namespace: str = "") -> Doc | None:
        stored = self.store.get(kind_of(resource), (namespace, name))
        return copied(stored.doc) if stored else None

    def existing(self, resource: Resource, name: str, namespace: str = "") -> Doc:
        """A copy; AssertionError if there is none."""
        doc = self.doc(resource, name, namespace)
        assert doc is not None, f"no {resource.plural} {namespace}/{name} in {self.name}"
        return doc

    def serve(self, resource: Resource) -> None:
        self._served[kind_of(resource)] = resource

    def served(self, kind: Kind) -> Resource:
        return self._served[kind]

    def compact(self) -> None:
        """Older versions are gone: watches and page tokens from them get 410."""
        self.store.compact()
        self._pages.clear()

    def backup(self) -> Backup:
        return self.store.backup()

    def restore(self, backup: Backup) -> None:
        """As if etcd came back from a backup and the server was started on it: versions go back, a watch resumed at
        a later one is silent until it is reached."""
        self.crash()
        self.store.restore(backup)
        self._pages.clear()
        self.start()

    def crash(self) -> None:
        """Connections break and are refused. What was written stays."""
        self.available = False
        for watcher in self.watchers:
            watcher.broken = True
            watcher.arrived.set()
        self.watchers.clear()

    def start(self) -> None:
        self.available = True

    def stop(self) -> None:
        """SIGSTOP."""
        self.stopped = True
        self.goes_on.clear()

    def go_on(self) -> None:
        """SIGCONT."""
        self.stopped = False
        self.goes_on.set()
        backlog, self.backlog = self.backlog, []
        for late in backlog:
            late()
        for watcher in self.watchers:
            watcher.arrived.set()

    def check_allowed(self, request: Request) -> None:
        """Raises Forbidden."""
        if self.authorize is not None and not self.authorize(request):
            scope = f'in the namespace "{request.namespace}"' if request.namespace else "at the cluster scope"
            raise refuse(
                403,
                "Forbidden",
                f'{request.resource} is forbidden: User "{request.user}" cannot {request.verb} resource '
                f'"{request.resource}" in API group "{request.group}" {scope}',
            )

    def forget(self, watcher: Watcher) -> None:
        if watcher in self.watchers:
            self.watchers.remove(watcher)

    def now(self) -> str:
        return self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def record(self, request: Request, outcome: str) -> None:
        self.audit.append(Audited(self.clock.monotonic(), request, outcome))

    # Reading ------------------------------------------------------------------------------------------------------

    def get(self, resource: Resource, name: str, namespace: str) -> bytes:
        return self._must(resource, namespace, name).data

    def list(
        self, resource: Resource, namespace: str, labels: str = "", fields: str = "", limit: int = 0, token: str = ""
    ) -> bytes:
        kind = self._kind(resource)
        if token:
            if token not in self._pages:
                raise refuse(410, "Expired", "The provided continue parameter is too old")
            revision, items = self._pages.pop(token)
        else:
            matchers = self._matchers(kind, labels, fields)
            found = [s for _, s in self.store.all(kind, namespace) if all(matches(s.doc) for matches in matchers)]
            revision, items = self.store.revision, [_item(stored, kind) for stored in found]
        rest = items[limit:] if limit else []
        next_token = f"{self.name}/{uuid.UUID(int=self._rng.getrandbits(128))}" if rest else ""
        if rest:
            self._pages[next_token] = (revision, rest)
            if len(self._pages) > KEPT_PAGES:
                self._pages.pop(next(iter(self._pages)))
        meta = msgspec.json.encode({"resourceVersion": str(revision)} | ({"continue": next_token} if rest else {}))
        served = self._served[kind]
        head = f'{{"kind":"{served.kind}List","apiVersion":"{served.api_version}","metadata":'.encode()
        return head + meta + b',"items":[' + b",".join(items[:limit] if limit else items) + b"]}"

    def watch(self, resource: Resource, namespace: str, version: str, labels: str = "", fields: str = "") -> Watcher:
        """Registered: the caller takes it out of `watchers` when done."""
        kind = self._kind(resource)
        matchers = self._matchers(kind, labels, fields)
        from_now = version in ("", "0")
        watcher = Watcher(kind, namespace, self.store.revision if from_now else int(version), matchers)
        if from_now:
            for _, stored in self.store.all(kind, namespace):
                watcher.show_present(stored)
        else:
            try:
                for change in self.store.since(kind, int(version)):
                    watcher.show(change)
            except Expired:
                message = f"too old resource version: {version} ({self.store.compacted})"
                watcher.error({"kind": "Status", "code": 410, "reason": "Expired", "message": message})
                return watcher
        self.watchers.append(watcher)
        return watcher

    def bookmark(self, watcher: Watcher, resource: Resource) -> None:
        watcher.bookmark(self.store.revision, resource.api_version, resource.kind)

    # Writing ------------------------------------------------------------------------------------------------------

    def create(self, resource: Resource, doc: Doc, namespace: str, name: str = "", subresource: str = "") -> bytes:
        kind = self._kind(resource)
        if subresource == "binding":
            return self._bind(self._must(resource, namespace, name), doc)
        if subresource == "eviction":
            options = doc.get("deleteOptions") or {}
            uid = (options.get("preconditions") or {}).get("uid", "")
            self.delete(resource, name, namespace, uid=uid, grace=options.get("gracePeriodSeconds"))
            return _success()
        if subresource:
            raise refuse(404, "", "the server could not find the requested resource")
        doc = copied(doc)
        metadata = doc.setdefault("metadata", {})
        self._check_body(resource, doc, namespace)
        if not metadata.get("name") and metadata.get("generateName"):
            letters = "bcdfghjklmnpqrstvwxz2456789"
            metadata["name"] = metadata["generateName"] + "".join(self._rng.choice(letters) for _ in range(5))
        check_name(metadata.get("name", ""), resource.kind)
        if metadata.get("resourceVersion"):
            raise refuse(500, "", "resourceVersion should not be set on objects to be created")
        self._check_namespace(resource, namespace)
        key = (namespace if resource.namespaced else "", metadata["name"])
        if self.store.get(kind, key) is not None:
            raise refuse(409, "AlreadyExists", f'{_plural(resource)} "{key[1]}" already exists')
        doc["apiVersion"], doc["kind"] = resource.api_version, resource.kind
        if resource.namespaced:
            metadata["namespace"] = namespace
        prepare_create(kind, doc)
        metadata["uid"] = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        metadata["creationTimestamp"] = self.now()
        if resource == CRDS:
            self._serve_crd(doc)
        return self.store.put(kind, key, doc).data

    def replace(self, resource: Resource, name: str, doc: Doc, namespace: str, subresource: str = "") -> bytes:
        stored = self._must(resource, namespace, name, subresource)
        self._check_body(resource, doc, namespace, name)
        version = (doc.get("metadata") or {}).get("resourceVersion", "")
        if not version and kind_of(resource) not in UNCONDITIONAL_UPDATE:
            raise refuse(
                422, "Invalid", f'{_plural(resource)} "{name}" is invalid: metadata.resourceVersion: must be specified'
            )
        return self._update(resource, stored, doc, subresource)

    def patch(self, resource: Resource, name: str, patch: Doc, namespace: str, subresource: str = "") -> bytes:
        stored = self._must(resource, namespace, name, subresource)
        merged = merge_patch(stored.doc, patch)
        self._check_body(resource, merged, namespace, name)
        return self._update(resource, stored, merged, subresource)

    def apply(
        self, resource: Resource, name: str, doc: Doc, namespace: str, subresource: str = "", manager: str = "muster"
    ) -> bytes:
        kind = self._kind(resource)
        doc = copied(doc)
        self._check_body(resource, doc, namespace, name)
        doc["metadata"] = {**doc.get("metadata", {}), "name": name}
        stored = self.store.get(kind, (namespace if resource.namespaced else "", name))
        if stored is None:
            if subresource:
                raise self._not_found(resource, name)
            data = self.create(resource, doc, namespace)
            self._applied[msgspec.json.decode(data)["metadata"]["uid"], manager, ""] = doc
            return data
        uid = stored.doc["metadata"]["uid"]
        mine = (uid, manager, subresource)
        others = [applied for owner, applied in self._applied.items() if owner[0] == uid and owner != mine]
        merged = apply(stored.doc, self._applied.get(mine, {}), doc, others)
        data = self._update(resource, stored, merged, subresource)
        self._applied[mine] = doc
        return data

    def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str,
        *,
        uid: str = "",
        version: str = "",
        propagation: str = "Background",
        grace: int | None = None,
    ) -> bytes:
        kind = self._kind(resource)
        stored = self._must(resource, namespace, name)
        doc = copied(stored.doc)
        metadata = doc["metadata"]
        key = (metadata.get("namespace", ""), name)
        for field, wanted in (("uid", uid), ("resourceVersion", version)):
            if wanted and wanted != metadata[field]:
                raise refuse(
                    409, "Conflict", f"Precondition failed: {field} in precondition: {wanted}, {metadata[field]}"
                )
        finalizers = list(metadata.get("finalizers") or ())
        extra = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}.get(propagation)
        if extra and extra not in finalizers and not metadata.get("deletionTimestamp"):
            metadata["finalizers"] = finalizers = [*finalizers, extra]
        seconds = grace_seconds(kind, doc, grace)
        if not metadata.get("deletionTimestamp"):
            ends = self.clock.now() + timedelta(seconds=seconds)
            metadata["deletionTimestamp"] = ends.strftime("%Y-%m-%dT%H:%M:%SZ")
            metadata["deletionGracePeriodSeconds"] = seconds
            if "generation" in metadata:
                metadata["generation"] += 1
        else:
            metadata["deletionGracePeriodSeconds"] = min(seconds, metadata.get("deletionGracePeriodSeconds", 0))
        if kind == NS:
            doc["status"] = {"phase": "Terminating"}
        elif not finalizers and metadata["deletionGracePeriodSeconds"] == 0:
            self._remove(kind, key)
            return _success()
        if doc == stored.doc:
            return stored.data
        return self.store.put(kind, key, doc).data

    def finish_namespace(self, name: str) -> None:
        """The namespace controller's last step."""
        self._remove(NS, ("", name))

    # Inner parts --------------------------------------------------------------------------------------------------

    def _update(self, resource: Resource, stored: Stored, wanted: Doc, subresource: str) -> bytes:
        kind = kind_of(resource)
        there, given = stored.doc["metadata"], wanted.get("metadata") or {}
        name = there["name"]
        for field, what in (("uid", "UID"), ("resourceVersion", "resourceVersion")):
            if given.get(field) and given[field] != there[field]:
                raise refuse(
                    409,
                    "Conflict",
                    f'Operation cannot be fulfilled on {_plural(resource)} "{name}": the object has been modified; '
                    f"please apply your changes to the latest version and try again ({what})",
                )
        doc = prepare_update(kind, stored.doc, wanted, subresource)
        metadata = doc["metadata"]
        held = metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds") or kind == NS
        if metadata.get("deletionTimestamp") and not held:
            return self._remove(kind, (there.get("namespace", ""), name)).data
        if doc == stored.doc:
            return stored.data  # a write that changes nothing makes no version
        if resource == CRDS:
            self._serve_crd(doc)
        return self.store.put(kind, (there.get("namespace", ""), name), doc).data

    def _remove(self, kind: Kind, key: Key) -> Stored:
        last = self.store.remove(kind, key)
        for owner in [owner for owner in self._applied if owner[0] == last.doc["metadata"]["uid"]]:
            del self._applied[owner]
        if kind == kind_of(CRDS):
            self._unserve_crd(last.doc)
        return last

    def _bind(self, stored: Stored, binding: Doc) -> bytes:
        metadata = binding.get("metadata") or {}
        target = (binding.get("target") or {}).get("name", "")
        if not target:
            raise refuse(422, "Invalid", "Binding is invalid: target.name: Required value")
        pod = bound(stored.doc, target, metadata.get("uid", ""), metadata.get("resourceVersion", ""), self.now())
        self.store.put(PODS, (pod["metadata"]["namespace"], pod["metadata"]["name"]), pod)
        return _success()

    def _kind(self, resource: Resource) -> Kind:
        kind = kind_of(resource)
        if kind not in self._served:
            raise refuse(404, "NotFound", "the server could not find the requested resource")
        return kind

    def _must(self, resource: Resource, namespace: str, name: str, subresource: str = "") -> Stored:
        kind = self._kind(resource)
        if subresource and (subresource != "status" or not has_status(kind)):
            raise refuse(404, "NotFound", "the server could not find the requested resource")
        stored = self.store.get(kind, (namespace if resource.namespaced else "", name))
        if stored is None:
            raise self._not_found(resource, name)
        return stored

    def _not_found(self, resource: Resource, name: str) -> Exception:
        return refuse(404, "NotFound", f'{_plural(resource)} "{name}" not found')

    def _check_body(self, resource: Resource, doc: Doc, namespace: str, name: str = "") -> None:
        metadata = doc.get("metadata") or {}
        if doc.get("kind", resource.kind) != resource.kind or doc.get("apiVersion", resource.api_version) != (
            resource.api_version
        ):
            raise refuse(400, "BadRequest", f"{doc.get('apiVersion')} {doc.get('kind')} is not {resource.kind}")
        if resource.namespaced and metadata.get("namespace", namespace) != namespace:
            raise refuse(400, "BadRequest", "the namespace of the provided object does not match the request's")
        if name and metadata.get("name", name) != name:
            raise refuse(400, "BadRequest", f"the name of the object ({metadata['name']}) does not match {name}")

    def _check_namespace(self, resource: Resource, namespace: str) -> None:
        if not resource.namespaced:
            return
        stored = self.store.get(NS, ("", namespace))
        if stored is None:
            raise refuse(404, "NotFound", f'namespaces "{namespace}" not found')
        if stored.doc["metadata"].get("deletionTimestamp"):
            raise refuse(403, "Forbidden", f"unable to create new content in namespace {namespace}: being terminated")

    def _matchers(self, kind: Kind, labels: str, fields: str) -> tuple[Any, ...]:
        try:
            return (label_matcher(labels), field_matcher(fields, kind))
        except BadSelector as error:
            raise refuse(400, "BadRequest", str(error)) from error

    def _show(self, change: Change) -> None:
        for watcher in self.watchers:
            watcher.show(change)

    def _serve_crd(self, doc: Doc) -> None:
        spec = doc["spec"]
        for version in spec["versions"]:
            if version.get("served", True):
                names = spec["names"]
                namespaced = spec.get("scope", "Namespaced") == "Namespaced"
                self.serve(Resource(spec["group"], version["name"], names["plural"], names["kind"], namespaced))

    def _unserve_crd(self, doc: Doc) -> None:
        kind = (doc["spec"]["group"], doc["spec"]["names"]["plural"])
        for key, _ in self.store.all(kind):
            self._remove(kind, key)
        self._served.pop(kind, None)


def _plural(resource: Resource) -> str:
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def _item(stored: Stored, kind: Kind) -> bytes:
    """Items of built-in lists carry neither apiVersion nor kind."""
    if is_custom(kind):
        return stored.data
    return msgspec.json.encode({k: v for k, v in stored.doc.items() if k not in ("apiVersion", "kind")})


def _success() -> bytes:
    return b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}'
