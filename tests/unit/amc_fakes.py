"""A hub and members for kubectl amc: just enough of an API server to answer reads, tables included."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec
import yaml

from dispatcher.kubectl_amc.session import Session, Terminal
from kube.api.errors import ApiError, NotFound
from kube.api.kubeconfig import MemberCredentials
from kube.objects.names import MANAGED

Json = dict[str, Any]

KINDS = [
    # group, version, plural, kind, namespaced, singular, short names
    ("", "v1", "pods", "Pod", True, "pod", ["po"]),
    ("", "v1", "nodes", "Node", False, "node", ["no"]),
    ("", "v1", "secrets", "Secret", True, "secret", []),
    ("apps", "v1", "deployments", "Deployment", True, "deployment", ["deploy"]),
    ("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob", True, "pytorchjob", []),
    ("muster.dev", "v1alpha1", "memberclusters", "MemberCluster", False, "membercluster", ["mcl"]),
]
COLUMNS = {
    "pods": [("Name", 0), ("Ready", 0), ("Status", 0), ("Restarts", 0), ("Age", 0), ("Node", 1)],
    "pytorchjobs": [("Name", 0), ("State", 0), ("Age", 0)],
}
UNSET = [("Name", 0), ("Age", 0)]


def pod(name: str, namespace: str = "default", *, managed: bool = True, node: str = "n1", **cells: str) -> Json:
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": {MANAGED: "true"} if managed else {}},
        "cells": {"Ready": "1/1", "Status": "Running", "Restarts": "0", "Age": "7m16s", "Node": node} | cells,
    }


def job(name: str, state: str | None, namespace: str = "default", *, managed: bool = True) -> Json:
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": {MANAGED: "true"} if managed else {}},
        "spec": {"pytorchReplicaSpecs": {}},
        "cells": {"State": state, "Age": "6m23s"},
    }


class FakeServer:
    """One API server. `objects`: plural -> what it holds; "cells" is what its tables show of an object."""

    def __init__(self, objects: dict[str, list[Json]] | None = None, *, without: tuple[str, ...] = ()) -> None:
        self.kinds = [kind for kind in KINDS if kind[2] not in without]
        self.objects: dict[str, list[Json]] = {}
        self.columns = COLUMNS
        self.down: ApiError | None = None
        self.version = 100
        self.asked: list[str] = []
        self.page_size = 0
        self.watches: list[asyncio.Queue[bytes | ApiError | None]] = []
        for plural, held in (objects or {}).items():
            for one in held:
                self.put(plural, one)

    # what tests do

    def put(self, plural: str, one: Json, event: str = "ADDED") -> None:
        """Creates or changes an object, and tells the watches."""
        self.version += 1
        metadata = {"uid": f"uid-{one['metadata']['name']}", **one["metadata"], "resourceVersion": str(self.version)}
        held = self.objects.setdefault(plural, [])
        held[:] = [o for o in held if o["metadata"]["name"] != metadata["name"]]
        held.append({**one, "metadata": metadata})
        self.tell(event, self.table(plural, [held[-1]]))

    def tell(self, event: str, document: Json) -> None:
        line = msgspec.json.encode({"type": event, "object": document | {"columnDefinitions": None}})
        for queue in self.watches:
            queue.put_nowait(line)

    def end_watches(self, error: ApiError | None = None) -> None:
        for queue in self.watches:
            queue.put_nowait(error)
        self.watches.clear()

    # ReadApi

    async def read_path(self, path: str, *, accept: str = "application/json", timeout: float | None = None) -> bytes:
        self.asked.append(path)
        if self.down is not None:
            raise self.down
        url = urlsplit(path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if url.path in ("/api", "/apis"):
            return msgspec.json.encode(self.discovery(core=url.path == "/api"))
        plural, namespace, name = self.parsed(url.path)
        held = [o for o in self.objects.get(plural, []) if namespace in ("", o["metadata"].get("namespace", ""))]
        if name:
            held = [o for o in held if o["metadata"]["name"] == name]
            if not held:
                raise NotFound(404, "NotFound", f'{plural} "{name}" not found')
        if "fieldSelector" in query:
            held = [o for o in held if o["metadata"]["name"] == query["fieldSelector"].partition("=")[2]]
        start = int(query.get("continue", 0))
        end = start + (self.page_size or len(held) + 1)
        rest = str(end) if end < len(held) and not name else ""
        if "as=Table" in accept:
            return msgspec.json.encode(self.table(plural, held[start:end], rest))
        documents = [{k: v for k, v in o.items() if k != "cells"} for o in held[start:end]]
        group, version, _, kind, *_ = next(k for k in self.kinds if k[2] == plural)
        type_ = {"apiVersion": f"{group}/{version}" if group else version, "kind": kind}
        if name:
            return msgspec.json.encode(type_ | documents[0])
        metadata = {"resourceVersion": str(self.version), "continue": rest}
        return msgspec.json.encode(type_ | {"kind": f"{kind}List", "metadata": metadata, "items": documents})

    @asynccontextmanager
    async def watch_path(
        self, path: str, *, accept: str = "application/json", silence_seconds: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        self.asked.append(path)
        if self.down is not None:
            raise self.down
        queue: asyncio.Queue[bytes | ApiError | None] = asyncio.Queue()
        self.watches.append(queue)

        async def lines() -> AsyncIterator[bytes]:
            while (line := await queue.get()) is not None:
                if isinstance(line, ApiError):
                    raise line
                yield line

        yield lines()

    def parsed(self, path: str) -> tuple[str, str, str]:
        """(plural, namespace, name)."""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if parts[0] == "namespaces" and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        return parts[0], namespace, parts[1] if len(parts) > 1 else ""

    def table(self, plural: str, held: list[Json], rest: str = "") -> Json:
        columns = self.columns.get(plural, UNSET)
        return {
            "kind": "Table",
            "metadata": {"resourceVersion": str(self.version), "continue": rest},
            "columnDefinitions": [{"name": name, "type": "string", "priority": p} for name, p in columns],
            "rows": [
                {
                    "cells": [o["metadata"]["name"] if n == "Name" else o.get("cells", {}).get(n) for n, _ in columns],
                    "object": {"kind": "PartialObjectMetadata", "metadata": o["metadata"]},
                }
                for o in held
            ],
        }

    def discovery(self, *, core: bool) -> Json:
        groups: dict[tuple[str, str], list[Json]] = {}
        for group, version, plural, kind, namespaced, singular, short in self.kinds:
            if (group == "") == core:
                groups.setdefault((group, version), []).append(
                    {
                        "resource": plural,
                        "responseKind": {"group": group, "version": version, "kind": kind},
                        "scope": "Namespaced" if namespaced else "Cluster",
                        "singularResource": singular,
                        "shortNames": short,
                        "verbs": ["get", "list", "watch"],
                    }
                )
        return {
            "kind": "APIGroupDiscoveryList",
            "items": [
                {"metadata": {"name": group}, "versions": [{"version": version, "resources": resources}]}
                for (group, version), resources in groups.items()
            ],
        }


def kubeconfig(server: str) -> str:
    return yaml.safe_dump(
        {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {"token": "t0ken"}}],
        }
    )


class World:
    """A hub that knows these members, and what was written to stdout and stderr."""

    def __init__(self, **members: FakeServer) -> None:
        self.members = members
        self.hub = FakeServer()
        self.out = ""
        self.err = ""
        for name in members:
            self.register(name, kubeconfig(f"https://{name}.example:6443"))

    def register(self, name: str, text: str) -> None:
        self.hub.put(
            "memberclusters", {"metadata": {"name": name}, "spec": {"kubeconfigSecret": {"name": f"kc-{name}"}}}
        )
        data = {"kubeconfig": base64.b64encode(text.encode()).decode()}
        self.hub.put("secrets", {"metadata": {"name": f"kc-{name}", "namespace": "muster-system"}, "data": data})

    @asynccontextmanager
    async def connect(self, credentials: MemberCredentials) -> AsyncIterator[FakeServer]:
        yield self.members[credentials.server.removeprefix("https://").partition(".")[0]]

    def session(self, namespace: str = "default") -> Session:
        def out(text: str) -> None:
            self.out += text

        def err(text: str) -> None:
            self.err += text

        return Session(hub=self.hub, connect=self.connect, terminal=Terminal(out, err), namespace=namespace)
