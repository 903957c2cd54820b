"""One fleet of real control planes for the whole test run.

Planes stay up; tests are kept apart by namespaces and by setting the members' nodes. After each test everything that
it killed, stopped or cut is brought back, and a process that crashed by itself fails it.

While developing, keep a fleet running and let the tests use it:

    python -m hack.fleet up
    MUSTER_FLEET_DIR=~/.local/state/muster/fleet/default pytest tests/fleet/test_...py

Environment: MUSTER_FLEET_DIR (use the fleet in that folder, and leave it running), MUSTER_FLEET_WITHOUT (comma list of
extender, dispatcher, operator, when the fleet is made here).
"""

import contextlib
import functools
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hack.fleet.fleet import Cluster, Fleet, wait_for
from hack.fleet.rest import RestError
from hack.fleet.spec import FleetSpec, MemberSpec, NodeShape, default_members
from hack.fleet.state import FleetError

DEFAULT_NODES = NodeShape(count=3, cpu="8", memory="32Gi", gpus=8)
"""Each member's nodes before every test."""

SetNodes = Callable[..., dict[str, list[str]]]


@pytest.fixture(scope="session")
def whole_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The hub, member1 and member2 with the real training operator, extender and dispatcher. Use `fleet`."""
    if folder := os.environ.get("MUSTER_FLEET_DIR"):
        attached = Fleet.attach(Path(folder).expanduser())
        attached.restore()
        yield attached
        return
    members = tuple(msgspec.structs.replace(m, nodes=(DEFAULT_NODES,)) for m in default_members(2))
    without = frozenset(filter(None, os.environ.get("MUSTER_FLEET_WITHOUT", "").split(",")))
    with Fleet.running(tmp_path_factory.mktemp("fleet"), FleetSpec(members=members, without=without)) as fleet:
        yield fleet


@pytest.fixture
def fleet(whole_fleet: Fleet) -> Iterator[Fleet]:
    """The fleet, whole at the start of the test and made whole after it."""
    operators = {m.name: m for m in whole_fleet.spec.members}
    yield whole_fleet
    with made_whole(whole_fleet):
        for name, was in operators.items():
            if whole_fleet.spec.member(name) != was:
                whole_fleet.set_operator(name, was.operator, was.dialect, was.operator_options)


@contextlib.contextmanager
def made_whole(fleet: Fleet) -> Iterator[None]:
    """Cleans up on a fleet that is whole again; afterwards the test fails if a process had crashed by itself."""
    crash: FleetError | None = None
    try:
        fleet.check()
    except FleetError as error:
        crash = error
    fleet.restore()
    yield
    if crash is not None:
        raise crash


@pytest.fixture
def hub(fleet: Fleet) -> Cluster:
    return fleet.hub


@pytest.fixture
def member1(fleet: Fleet) -> Cluster:
    return fleet.members["member1"]


@pytest.fixture
def member2(fleet: Fleet) -> Cluster:
    return fleet.members["member2"]


@pytest.fixture
def namespace(fleet: Fleet) -> Iterator[str]:
    """A namespace of this test's own, in the hub and in every member; emptied afterwards, pods included."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    for cluster in fleet.clusters.values():
        create_namespace(cluster, name)
    yield name
    with made_whole(fleet):
        remove_namespace(fleet, name)


@pytest.fixture
def member_nodes(fleet: Fleet) -> Iterator[SetNodes]:
    """A function that sets nodes exactly: member_nodes(member1=[NodeShape(...)], member2=[]) -> names by member.

    Members that are not named keep theirs. Afterwards every member has DEFAULT_NODES again.
    """
    changed: set[str] = set()

    def set_nodes(**shapes: list[NodeShape]) -> dict[str, list[str]]:
        changed.update(shapes)
        return {member: fleet.members[member].set_nodes(*found) for member, found in shapes.items()}

    yield set_nodes
    with made_whole(fleet):
        for member in changed:
            fleet.members[member].set_nodes(DEFAULT_NODES)


def create_namespace(cluster: Cluster, name: str) -> None:
    """Creates it and waits for its default ServiceAccount, without which it takes no pods."""
    with contextlib.closing(cluster.rest()) as rest:
        rest.post("/api/v1/namespaces", {"metadata": {"name": name}})

        def has_account() -> bool:
            try:
                rest.get(f"/api/v1/namespaces/{name}/serviceaccounts/default")
            except RestError as error:
                if error.status != 404:
                    raise
                return False
            return True

        wait_for(f"the default ServiceAccount of {name} in {cluster.name}", has_account)


def remove_namespace(fleet: Fleet, name: str) -> None:
    """Deletes jobs on the hub, then the namespace everywhere, then whatever pods are still left of it."""
    jobs = f"/apis/kubeflow.org/v1/namespaces/{name}/pytorchjobs"
    with contextlib.closing(fleet.hub.rest()) as rest, contextlib.suppress(RestError):
        rest.request("DELETE", jobs)
    for cluster in fleet.clusters.values():
        with contextlib.closing(cluster.rest()) as rest:
            rest.delete(f"/api/v1/namespaces/{name}")
    for member in fleet.members.values():
        wait_for(f"no pods of {name} in {member.name}", functools.partial(has_no_pods, member, name))


def has_no_pods(cluster: Cluster, namespace: str) -> bool:
    """Whether no pod is left there; those that are left are deleted at once, without waiting for a kubelet."""
    with contextlib.closing(cluster.rest()) as rest:
        pods: list[dict[str, Any]] = rest.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
        names = [pod["metadata"]["name"] for pod in pods]
        for name in names:
            rest.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", grace_seconds=0)
    return not names


@contextlib.contextmanager
def lone_member(folder: Path, member: MemberSpec) -> Iterator[Fleet]:
    """A fleet of one member without a dispatcher, for what the ordinary one does not have.

    MUSTER_FLEET_DIR_STANDBY and MUSTER_FLEET_DIR_MANAGED: use the fleet in that folder, and leave it running.
    """
    kind = "STANDBY" if member.standby else "MANAGED"
    if running := os.environ.get(f"MUSTER_FLEET_DIR_{kind}"):
        attached = Fleet.attach(Path(running).expanduser())
        attached.restore()
        yield attached
        return
    spec = FleetSpec(members=(member,), without=frozenset({"dispatcher"}))
    with Fleet.running(folder, spec) as fleet:
        yield fleet
