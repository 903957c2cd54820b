"""Queue objects (scheduling.x-k8s.io/v1alpha1) as they should be: one per node of the quota tree, in kube-queue.

They are a view of the tree: created once, repaired when edited, and never read back but for what users set on them
(spec, annotations). Queues without our label are other people's and left alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec

from dispatcher.documents import at, deep_copy, mapping, string_map, text, whole
from dispatcher.queue_names import queue_name
from dispatcher.queue_units import queue_unit_name
from dispatcher.queueing import QueuePolicy, QueueSettings, Waiting, hand_made_key
from dispatcher.quota_tree import AVAILABLE_QUOTA, NodePath, QuotaNode, Tree, allowed_quotas, dump_tree, load_tree
from kube.objects.binding import binding_name
from kube.objects.meta import Json
from kube.objects.names import QUEUE_NAMESPACE

CREATED_BY = "create-by-kubequeue"
"""Label, value "true", on the queues that follow the tree."""
QUEUE_NAME = "kube-queue/queue-name"
"""Annotation of a job: the hand-made queue it waits in."""
QUOTA = "kube-queue/quota-fullname"
PARENT_QUOTA = "kube-queue/parent-quota-fullname"


TREE = "muster.dev/tree-in-force"
"""On the root's queue: the last good tree. A process that starts while the tree is bad goes on with it."""
LONGEST_TREE = 200_000
"""Bytes; the API server takes 262144 of annotations in all."""


class QueueChanges(msgspec.Struct, frozen=True, kw_only=True):
    create: tuple[Json, ...] = ()
    update: tuple[Json, ...] = ()
    """Whole objects with resourceVersion, for PUT."""
    delete: tuple[tuple[str, str], ...] = ()
    """(name, uid)."""
    warnings: tuple[str, ...] = ()


def desired_queues(tree: Tree) -> list[Json]:
    """One per node, root and parents included."""
    queues = [_queue(node) for node in tree.nodes.values()]
    if queues and len(dumped := dump_tree(tree)) <= LONGEST_TREE:
        queues[0]["metadata"]["annotations"][TREE] = dumped
    return queues


def last_good_tree(queues: Iterable[Json]) -> Tree | None:
    """As noted on the root's queue; None: nowhere."""
    for queue in queues:
        dumped = string_map(at(queue, ("metadata", "annotations"))).get(TREE)
        if dumped and is_ours(queue):
            try:
                return load_tree(dumped)
            except msgspec.DecodeError:
                continue
    return None


def _queue(node: QuotaNode) -> Json:
    annotations = {QUOTA: node.full_name}
    if len(node.path) > 1:
        annotations[PARENT_QUOTA] = "/".join(node.path[:-1])
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "Queue",
        "metadata": {
            "name": queue_name(node.path),
            "namespace": QUEUE_NAMESPACE,
            "labels": {CREATED_BY: "true"},
            "annotations": annotations,
        },
        "spec": {"queuePolicy": "Priority"},
    }


def queue_changes(tree: Tree, existing: Iterable[Json]) -> QueueChanges:
    """What to write so that the queues follow the tree; users' own annotations, labels and spec are kept."""
    there = {text(at(queue, ("metadata", "name"))): queue for queue in existing}
    wanted = {queue["metadata"]["name"]: queue for queue in desired_queues(tree)}
    create, update, warnings = [], [], []
    for name, queue in wanted.items():
        known = there.get(name)
        if known is None:
            create.append(queue)
        elif not is_ours(known):
            warnings.append(
                f"Queue {QUEUE_NAMESPACE}/{name} was made by hand (no label {CREATED_BY}) and is left alone: remove it"
            )
        elif repaired := _repaired(known, queue):
            update.append(repaired)
    surplus = [
        (name, text(at(queue, ("metadata", "uid"))))
        for name, queue in there.items()
        if name not in wanted and is_ours(queue)
    ]
    return QueueChanges(
        create=tuple(create), update=tuple(update), delete=tuple(sorted(surplus)), warnings=tuple(warnings)
    )


def is_ours(queue: Json) -> bool:
    return string_map(at(queue, ("metadata", "labels"))).get(CREATED_BY) == "true"


def _repaired(known: Json, wanted: Json) -> Json | None:
    """The known queue with the quota's names as they should be; None if they are."""
    annotations = string_map(at(known, ("metadata", "annotations")))
    right = wanted["metadata"]["annotations"]
    kept = {name: value for name, value in annotations.items() if name not in (QUOTA, PARENT_QUOTA, TREE)}
    if annotations == {**kept, **right}:
        return None
    repaired = deep_copy(known)
    repaired["metadata"]["annotations"] = {**kept, **right}
    return repaired


def queue_settings(queue: Json) -> QueueSettings:
    """What the user set on a Queue. Round and policies nobody knows count as Priority."""
    spec = mapping(queue.get("spec"))
    return QueueSettings(policy=_policy(spec.get("queuePolicy")), priority=whole(spec.get("priority")) or 0)


def _policy(value: Any) -> QueuePolicy:
    known: tuple[Literal["Priority", "Block", "Intelligent"], ...] = get_args(QueuePolicy)
    return next((policy for policy in known if policy == value), "Priority")


def settings_by_path(tree: Tree, queues: Iterable[Json]) -> dict[tuple[str, ...], QueueSettings]:
    """For `Pending.configure`: what is set on the queue of each node, and on hand-made ones (`hand_made_key`)."""
    ours: dict[str, Json] = {}
    hand_made: dict[tuple[str, ...], QueueSettings] = {}
    for queue in queues:
        name = text(at(queue, ("metadata", "name")))
        if is_ours(queue):
            ours[name] = queue
        else:
            hand_made[hand_made_key(name)] = queue_settings(queue)
    return {path: queue_settings(ours.get(queue_name(path), {})) for path in tree.nodes} | hand_made


class Chosen(msgspec.Struct, frozen=True):
    """The hand-made queue a job waits in ("": its quota's own), or why it is held."""

    name: str
    reason: str = ""


def choose_queue(name: str, path: NodePath, queues: Mapping[str, Json]) -> Chosen:
    """`name`: the job's annotation kube-queue/queue-name. `queues`: hand-made ones by name. A queue takes the jobs of
    the quotas in its annotation kube-queue/available-quota, comma separated, or "*" for all."""
    if not name or name == queue_name(path):
        return Chosen("")
    queue = queues.get(name)
    if queue is None:
        return Chosen(
            "", f"held: there is no queue {QUEUE_NAMESPACE}/{name}: make it, or correct annotation {QUEUE_NAME}"
        )
    available = set(allowed_quotas(string_map(at(queue, ("metadata", "annotations")))))
    if not available & {"*", path[-1], "/".join(path)}:
        return Chosen(
            "", f"held: queue {name!r} does not take jobs of quota {'/'.join(path)}: name it in the queue's annotation "
            f"{AVAILABLE_QUOTA}"
        )  # fmt: skip
    return Chosen(name)


def queue_items(waiting: Sequence[Waiting], limit: int = 100) -> Json:
    """status.queueItemDetails: {"active": [{name, namespace, priority, position}]}, positions from 1."""
    return {
        "active": [
            {
                "name": queue_unit_name(binding_name(job.name)),
                "namespace": job.namespace,
                "priority": job.priority,
                "position": position,
            }
            for position, job in enumerate(waiting[:limit], start=1)
        ]
    }
