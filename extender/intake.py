"""The feed: what the watches and live reads saw, put into the caches, the ledger and the gangs.

Events may come twice, late, or out of order. What only moves one way is kept that way per UID: bound stays bound,
finished stays finished, deleted stays deleted (tombstones), and the younger pod of a name replaces the older.
"""

from itertools import islice

from extender import answers_bind, gate, membership, places
from extender.ledger import Charge, Holder, Nomination
from extender.pod_facts import PodFacts, facts_of, found_unschedulable
from extender.timers import Timer
from extender.world import World
from kube.objects.node_predicates import node_view
from kube.objects.nodes import Node
from kube.objects.pod_requests import PodTemplateError, pod_request
from kube.objects.pods import Pod
from kube.objects.quantity import QuantityError

TOMBSTONE = 120.0
BURIED_AT_ONCE = 1000
UNSEEN = 30.0
DELETED = "the pod was deleted"


def node_changed(world: World, node: Node) -> None:
    try:
        view = node_view(node)
    except QuantityError:
        world.counters["unreadable_nodes"] += 1
        node_deleted(world, node.metadata.name)
        return
    if world.ledger.set_node(view):
        _look_at_promises(world, node.metadata.name)


def node_deleted(world: World, name: str) -> None:
    world.ledger.remove_node(name)
    _look_at_promises(world, name)


def pod_changed(world: World, pod: Pod, now: float, *, confirmed: bool = True) -> PodFacts | None:
    """The pod as the watch shows it, or as a request does (not confirmed). None: it was ignored."""
    meta = pod.metadata
    if meta.uid in world.tombstones:
        return None
    known = world.pods.get(meta.uid)
    if known is not None and not confirmed:
        return known
    if known is None:
        namesake = world.pod_names.get(meta.key)
        if namesake is not None:
            if world.pods[namesake].created > (meta.creation_timestamp or ""):
                return None
            pod_deleted(world, namesake, now)
    try:
        facts = _read(world, known, pod)
    except (PodTemplateError, QuantityError):
        world.counters["unreadable_pods"] += 1
        return None
    facts.confirmed = confirmed
    if confirmed:
        world.timers.clear(Timer.UNSEEN, meta.uid)
    else:
        world.timers.set(Timer.UNSEEN, meta.uid, now + UNSEEN)
    world.pods[meta.uid] = facts
    world.pod_names[meta.key] = meta.uid
    asked = meta.uid in world.ledger.charges
    _charge(world, facts)
    if facts.node and not asked and world.deciding:
        _bound_by_another(world, facts)
    membership.update(world, facts, now)
    if facts.node and meta.uid in world.plain_posting:
        gate.settled_by_watch(world, meta.uid, facts.node)
    if facts.node and world.deciding:
        room = world.ledger.rooms.get(facts.node)
        if room is not None and room.slots and room.overcommitted:
            _look_at_promises(world, facts.node)
    if known is None and meta.uid in world.gate:
        answers_bind.look_again(world, meta.uid, now)
    return facts


def _bound_by_another(world: World, facts: PodFacts) -> None:
    """Two schedulers that share nodes can find the same room free at the same time (kubernetes#60469): counted."""
    room = world.ledger.rooms.get(facts.node)
    if room is not None and room.node is not None and room.overfull:
        world.counters["overcommitted_by_others"] += 1


def pod_deleted(world: World, uid: str, now: float) -> None:
    """Everything the pod had is free; a late event of this UID is ignored for a while."""
    world.tombstones.pop(uid, None)
    world.tombstones[uid] = now + TOMBSTONE  # in the order of their time
    world.timers.set_earliest(Timer.TOMBSTONES, "", now + TOMBSTONE)
    forget(world, uid, now)


def forget(world: World, uid: str, now: float) -> None:
    facts = world.pods.pop(uid, None)
    if facts is not None and world.pod_names.get((facts.ref.namespace, facts.ref.name)) == uid:
        del world.pod_names[facts.ref.namespace, facts.ref.name]
    world.answer(world.gate.pop(uid, None), DELETED)
    world.answer(world.plain_posting.pop(uid, None), DELETED)
    world.posts_failed.pop(uid, None)
    world.in_doubt.discard(uid)
    for timer in (Timer.GATE, Timer.RETRY, Timer.UNKNOWN, Timer.ANSWERED, Timer.UNSEEN):
        world.timers.clear(timer, uid)
    world.ledger.withdraw_nomination(uid)
    world.ledger.release(uid)
    if facts is not None:
        membership.lost(world, facts, DELETED, now)


def bury(world: World, now: float) -> None:
    """Forget UIDs whose late events can't come any more."""
    for uid, until in list(islice(world.tombstones.items(), BURIED_AT_ONCE)):
        if until > now:
            world.timers.set(Timer.TOMBSTONES, "", max(until, now + 1.0))
            return
        del world.tombstones[uid]
    if world.tombstones:
        world.timers.set(Timer.TOMBSTONES, "", now)


def _read(world: World, known: PodFacts | None, pod: Pod) -> PodFacts:
    meta = pod.metadata
    if known is not None and (known.node or pod.spec.node_name):
        # On a node: only what it takes there (resize) and how far it has come can still change.
        known.node = known.node or pod.spec.node_name
        known.pod = None
        known.nominated = ""
        known.finished = known.finished or pod.finished
        known.succeeded = known.succeeded or pod.status.phase == "Succeeded"
        known.running = pod.status.phase == "Running"
        known.terminating = known.terminating or meta.deletion_timestamp is not None
        known.gated = False
        if pod.spec.node_name and not known.finished:
            request = {**pod_request(pod.spec, pod.status), "pods": 1}
            if request != known.request:
                known.request = request
        return known
    if known is not None and known.pod is not None and _same_ask(known.pod, pod):
        known.nominated = pod.status.nominated_node_name
        known.unschedulable = found_unschedulable(pod)
        known.finished = known.finished or pod.finished
        known.succeeded = known.succeeded or pod.status.phase == "Succeeded"
        known.terminating = known.terminating or meta.deletion_timestamp is not None
        known.pod = pod
        return known
    facts = facts_of(pod, world.ledger.topology.selector_keys | membership.label_keys(world, pod))
    if known is not None:
        facts.finished = facts.finished or known.finished
        facts.succeeded = facts.succeeded or known.succeeded
        facts.terminating = facts.terminating or known.terminating
    return facts


def _same_ask(former: Pod, pod: Pod) -> bool:
    return former.spec == pod.spec and former.metadata.labels == pod.metadata.labels


def _charge(world: World, facts: PodFacts) -> None:
    uid = facts.ref.uid
    if facts.finished:
        world.ledger.withdraw_nomination(uid)
        world.ledger.release(uid)
        world.settled(uid)
    elif facts.node:
        world.ledger.withdraw_nomination(uid)
        world.ledger.charge(
            Charge(
                uid,
                facts.node,
                facts.pod_class,
                facts.request,
                facts.labels,
                Holder.BOUND,
                facts.gang,
                facts.terminating,
            )
        )
        world.settled(uid)
        world.timers.clear(Timer.ANSWERED, uid)
    elif facts.nominated and not facts.terminating:
        world.ledger.nominate(Nomination(uid, facts.nominated, facts.pod_class, facts.priority))
    else:
        world.ledger.withdraw_nomination(uid)


def _look_at_promises(world: World, node: str) -> None:
    room = world.ledger.rooms.get(node)
    if room is None or not world.deciding:
        return
    for key in {slot.gang for slot in room.slots.values()}:
        places.drop_unusable(world, world.gangs[key])
