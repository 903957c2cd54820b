"""Pods become members of gangs, change, and are lost."""

from extender import barrier
from extender.gangs import Gang, Member, Role
from extender.pod_facts import PodFacts, facts_of, gang_key
from extender.world import World
from kube.objects.gang_identity import gang_of
from kube.objects.pods import Pod

MASTER = "master"
_NO_KEYS: frozenset[str] = frozenset()


def label_keys(world: World, pod: Pod) -> frozenset[str]:
    """Pod labels that rules of the pod's siblings look at."""
    identity = gang_of(pod.metadata, pod.spec)
    gang = world.gangs.get(gang_key(identity)) if identity is not None else None
    return gang.label_keys if gang is not None else _NO_KEYS


def update(world: World, facts: PodFacts, now: float) -> None:
    """The pod's facts are new or have changed."""
    identity = facts.identity
    if identity is None:
        return
    key = facts.gang
    gang = world.gangs.get(key)
    if gang is None:
        gang = world.gangs[key] = Gang(key, *identity.key, born=now, created=facts.created)
    if not identity.from_hub:
        gang.needs_group = identity.source == "pod-group"
        gang.label_minimum = max(gang.label_minimum, identity.min_available or 0)
    uid = facts.ref.uid
    member = gang.members.get(uid)
    if member is None:
        member = gang.members[uid] = Member(facts.ref, "", facts.pod_class)
        gang.uids_seen += 1
        gang.revision += 1
        if facts.created and (not gang.created or facts.created < gang.created) and gang.hub is None:
            gang.created = facts.created
    if member.pod_class is not facts.pod_class or not member.role:
        _classify(world, gang, member, facts)
    member.gated = facts.gated
    if facts.unschedulable != member.unschedulable:
        member.unschedulable = facts.unschedulable
        gang.turned_away = gang.turned_away or facts.unschedulable != ""
    member.terminating = facts.terminating
    if facts.node and not member.node:
        member.node = facts.node
    if facts.node or facts.finished:
        slot = world.slot_of(member)
        if slot is not None:
            world.withdraw(gang, slot)
    if facts.finished and not member.finished:
        member.finished = True
        member.succeeded = facts.succeeded
        gang.saw_end = gang.saw_end or member.node != ""
        if facts.succeeded and _decides(gang, identity.role):
            gang.ended_ok = True
    member.charged = uid in world.ledger.charges
    if member.node or member.finished:
        barrier.settled_by_watch(world, gang, member, now)
    elif member.terminating and not member.posting:
        world.fail_call(gang, member, barrier.DELETING)
    gang.retally(member)
    world.touch(key)


def lost(world: World, facts: PodFacts, reason: str, now: float) -> None:
    """The pod is gone. Its place is kept for a while for the one that replaces it (`life`)."""
    del now
    gang = world.gangs.get(facts.gang)
    member = gang.members.get(facts.ref.uid) if gang is not None else None
    if gang is None or member is None:
        return
    world.fail_call(gang, member, reason)
    if member.slot:
        world.take_back(gang, member)
    if member.node and not member.finished:
        gang.vanished = True
        if gang.hub is None:
            gang.standin_role = member.role
    gang.drop(member)
    gang.revision += 1
    world.touch(gang.key)


def _decides(gang: Gang, role: str) -> bool:
    """Success of this role is success of the job (training-operator: the Master's, without one any worker's)."""
    return role == MASTER or (gang.hub is not None and MASTER not in gang.roles)


def _classify(world: World, gang: Gang, member: Member, facts: PodFacts) -> None:
    """Role and class of a member; the role of a reservation is compared with the first real pod."""
    gang._discount(member)  # noqa: SLF001  the role is part of what is counted
    member.pod_class = facts.pod_class
    identity = facts.identity
    assert identity is not None
    placed = bool(facts.node or facts.finished)
    if identity.from_hub:
        member.role = identity.role
        role = gang.roles.get(member.role)
        if role is not None and role.pod_class is not facts.pod_class and not placed:
            if not role.compared:
                role.pod_class = facts.pod_class
                gang.priority = max(gang.priority, facts.priority)
            gang.stale = True
        if role is not None and not placed:
            role.compared = True
    else:
        name = gang.role_of_class.get(facts.pod_class)
        if name is None:
            name = f"class-{len(gang.role_of_class)}"
            gang.role_of_class[facts.pod_class] = name
            gang.roles[name] = Role(name, facts.pod_class)
        member.role = name
        gang.standin_role = name
        gang.priority = max(gang.priority, facts.priority)
    gang.retally(member)
    if facts.pod_class.couples and not facts.pod_class.rule_keys <= gang.label_keys:
        gang.label_keys |= facts.pod_class.rule_keys
        _reclassify(world, gang)


def _reclassify(world: World, gang: Gang) -> None:
    """A rule looks at labels that the classes of siblings left out."""
    keys = gang.label_keys | world.ledger.topology.selector_keys
    for uid, member in gang.members.items():
        facts = world.pods.get(uid)
        if facts is not None and facts.pod is not None:
            facts.pod_class = facts_of(facts.pod, keys).pod_class
            if member.pod_class is not facts.pod_class:
                _classify(world, gang, member, facts)
    gang.stale = True
