"""The JSON that kube-scheduler and an extender exchange (kube-scheduler extender/v1 types.go, 1.34 to 1.37).

The Go types have no JSON tags, so keys are PascalCase; Pod and Node inside are ordinary API JSON. Null and absent
are the same everywhere (Go encodes nil slices and maps as null). Only HTTP 200 is success to kube-scheduler and the
body of any other status is not read: reasons travel in the reply.
"""

import msgspec

from kube.objects.meta import Json
from kube.objects.pods import Pod


class NodeList(msgspec.Struct):
    """core/v1 NodeList as sent with nodeCacheCapable=false; items are handed back untouched."""

    items: list[Json] | None = None

    def names(self) -> list[str]:
        return [_name(item) for item in self.items or ()]

    def named(self, names: list[str]) -> list[Json]:
        wanted = set(names)
        return [item for item in self.items or () if _name(item) in wanted]


class ExtenderArgs(msgspec.Struct, rename="pascal", kw_only=True):
    """Request of `filter` (and prioritize): exactly one of nodes (nodeCacheCapable=false) and node_names is given."""

    pod: Pod
    nodes: NodeList | None = None
    node_names: list[str] | None = None

    def offered(self) -> list[str]:
        """Names of the nodes that passed the in-tree filters, in the order given."""
        if self.node_names is not None:
            return self.node_names
        return self.nodes.names() if self.nodes is not None else []


class NodesReply(msgspec.Struct):
    """A NodeList in a reply."""

    items: list[Json]


class ExtenderFilterResult(msgspec.Struct, rename="pascal", kw_only=True):
    """Reply of `filter`. A node in neither map counts as unresolvable; unresolvable wins where a node is in both.

    A non-empty error fails the whole call: the pod is retried by back-off, without any event.
    """

    nodes: NodesReply | None = None
    node_names: list[str] | None = None
    failed_nodes: dict[str, str] = {}
    failed_and_unresolvable_nodes: dict[str, str] = {}
    error: str = ""


class ExtenderBindingArgs(
    msgspec.Struct,
    rename={"pod_name": "PodName", "pod_namespace": "PodNamespace", "pod_uid": "PodUID", "node": "Node"},
    kw_only=True,
):
    pod_name: str
    pod_namespace: str
    pod_uid: str
    node: str


class ExtenderBindingResult(msgspec.Struct, rename="pascal", kw_only=True):
    error: str = ""


class MetaPod(msgspec.Struct, rename={"uid": "UID"}, kw_only=True):
    uid: str = ""


class MetaVictims(msgspec.Struct, rename={"pods": "Pods", "num_pdb_violations": "NumPDBViolations"}, kw_only=True):
    """Victims of one candidate node. From kube-scheduler 1.38 the list may be empty or null (kubernetes#135486)."""

    pods: list[MetaPod | None] | None = None
    num_pdb_violations: int = 0

    def uids(self) -> list[str]:
        return [pod.uid for pod in self.pods or () if pod is not None]


class Victims(msgspec.Struct, rename={"pods": "Pods", "num_pdb_violations": "NumPDBViolations"}, kw_only=True):
    """As MetaVictims, with whole pods: sent with nodeCacheCapable=false."""

    pods: list[Pod | None] | None = None
    num_pdb_violations: int = 0


class ExtenderPreemptionArgs(msgspec.Struct, rename="pascal", kw_only=True):
    pod: Pod
    node_name_to_victims: dict[str, Victims | None] | None = None
    node_name_to_meta_victims: dict[str, MetaVictims | None] | None = None

    def candidates(self) -> dict[str, MetaVictims]:
        """Candidate nodes with their victims by uid, whichever of the two forms was sent."""
        if self.node_name_to_meta_victims is not None:
            return {node: victims or MetaVictims() for node, victims in self.node_name_to_meta_victims.items()}
        return {
            node: _meta(victims) if victims is not None else MetaVictims()
            for node, victims in (self.node_name_to_victims or {}).items()
        }


class ExtenderPreemptionResult(msgspec.Struct, rename="pascal", kw_only=True):
    """Reply of `preempt`: the candidates that may stay. Empty is a veto."""

    node_name_to_meta_victims: dict[str, MetaVictims] = {}


decode_filter = msgspec.json.Decoder(ExtenderArgs).decode
decode_binding = msgspec.json.Decoder(ExtenderBindingArgs).decode
decode_preemption = msgspec.json.Decoder(ExtenderPreemptionArgs).decode
"""Decoders raise msgspec.DecodeError (ValidationError for a wrong type) with the path of what is wrong."""

encode = msgspec.json.Encoder().encode


def _name(item: Json) -> str:
    return str((item.get("metadata") or {}).get("name", ""))


def _meta(victims: Victims) -> MetaVictims:
    return MetaVictims(
        pods=[MetaPod(uid=pod.metadata.uid) for pod in victims.pods or () if pod is not None],
        num_pdb_violations=victims.num_pdb_violations,
    )
