"""Audit logs: who wrote what, when. The API server is the witness, not the program under test."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  verbs: [get, list, watch]
- level: Request
  resources:
  - group: ""
    resources: [pods/binding]
- level: Metadata
  resources:
  - group: ""
    resources: [pods, pods/status, pods/eviction, bindings, events, nodes, namespaces, secrets, services]
  - group: events.k8s.io
  - group: muster.dev
  - group: policy.one.alibabacloud.com
  - group: kubeflow.org
  - group: scheduling.x-k8s.io
  - group: scheduling.sigs.k8s.io
- level: None
"""

_BLOCK = 4096


class AuditEvent(msgspec.Struct, frozen=True):
    """One finished write, flattened. `time` is RFC 3339 with microseconds, as the API server stamped its arrival."""

    user: str
    verb: str
    """create, update, patch, delete, deletecollection."""
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int
    uri: str
    time: str
    completed: str
    agent: str
    node: str = ""
    """Of a Binding: where to."""
    uid: str = ""
    """Of a Binding: the pod that is meant."""

    @property
    def target(self) -> str:
        """`pods/binding`, `gangreservations/status`, `pods`."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def read(log: Path, offset: int = 0) -> Iterator[AuditEvent]:
    """The events of an audit log from a byte offset on; a half-written last line is left for the next read."""
    if not log.exists():
        return
    with log.open("rb") as file:
        file.seek(offset)
        for line in file:
            if line.endswith(b"\n"):
                yield flatten(json.loads(line))


def size(log: Path) -> int:
    """Bytes of whole lines so far: an offset to read from later."""
    if not log.exists():
        return 0
    with log.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            begin = max(0, end - _BLOCK)
            file.seek(begin)
            if (newline := file.read(end - begin).rfind(b"\n")) >= 0:
                return begin + newline + 1
            end = begin
    return 0


def flatten(event: dict[str, Any]) -> AuditEvent:
    """An audit.k8s.io/v1 Event as an AuditEvent; absent fields are empty."""
    target = event.get("objectRef") or {}
    body = event.get("requestObject") or {}
    return AuditEvent(
        user=event.get("user", {}).get("username", ""),
        verb=event.get("verb", ""),
        group=target.get("apiGroup", ""),
        resource=target.get("resource", ""),
        subresource=target.get("subresource", ""),
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        code=(event.get("responseStatus") or {}).get("code", 0),
        uri=event.get("requestURI", ""),
        time=event.get("requestReceivedTimestamp", ""),
        completed=event.get("stageTimestamp", ""),
        agent=event.get("userAgent", ""),
        node=(body.get("target") or {}).get("name", ""),
        uid=(body.get("metadata") or {}).get("uid", ""),
    )
