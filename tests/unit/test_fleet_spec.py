"""What a fleet may consist of, and the objects it makes from that."""

from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from hack.fleet import audit, components, nodes, provision, scheduler_config
from hack.fleet.layout import Cluster, links
from hack.fleet.spec import FleetSpec, MemberSpec, NodeShape, SpecError, check, default_members
from hack.fleet.state import State


def test_the_default_fleet_is_a_hub_and_two_members() -> None:
    spec = FleetSpec(members=default_members(2))
    check(spec)
    assert spec.clusters == ("hub", "member1", "member2")
    assert spec.member("member2").name == "member2"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (FleetSpec(members=()), "at least one member"),
        (FleetSpec(members=(MemberSpec("a"), MemberSpec("a"))), "unique"),
        (FleetSpec(members=(MemberSpec("hub"),)), "unique and not 'hub'"),
        (FleetSpec(members=(MemberSpec("a/b"),)), "lower-case letters"),
        (FleetSpec(members=(MemberSpec("a", operator="volcano"),)), "'volcano' is not one of standin, real, none"),
        (FleetSpec(members=(MemberSpec("a", dialect="v2"),)), "'v2' is not one of training-operator, arena"),
        (FleetSpec(members=(MemberSpec("a", dialect="arena"),)), "use operator standin"),
        (FleetSpec(members=(MemberSpec("a"),), without=frozenset({"etcd"})), "--without: 'etcd'"),
        (FleetSpec(members=(MemberSpec("a", mode="rented"),)), "'rented' is not one of self-managed, managed"),
        (FleetSpec(members=(MemberSpec("a", standby=True),), without=frozenset({"extender"})), "neither a standby"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused_with_the_reason(spec: FleetSpec, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        check(spec)


def test_a_missing_member_is_answered_with_those_there_are() -> None:
    with pytest.raises(SpecError, match="there are: member1, member2"):
        FleetSpec(members=default_members(2)).member("member3")


def test_every_client_that_a_test_may_cut_off_has_a_link_of_its_own() -> None:
    names = [link.name for link in links(FleetSpec(members=default_members(1)))]
    assert names == [
        "hub/dispatcher>hub",
        "hub/dispatcher>member1",
        "member1/kube-scheduler>member1",
        "member1/kube-scheduler>member1/extender",
        "member1/extender>member1",
        "member1/operator>member1",
    ]


def test_a_standby_has_links_of_its_own_to_its_own_extender() -> None:
    names = [link.name for link in links(FleetSpec(members=(MemberSpec("m", standby=True),)))]
    assert names[2:] == [
        "m/kube-scheduler>m",
        "m/kube-scheduler>m/extender",
        "m/extender>m",
        "m/kube-scheduler-2>m",
        "m/kube-scheduler-2>m/extender-2",
        "m/extender-2>m",
        "m/operator>m",
    ]


def test_in_a_managed_member_only_the_second_scheduler_has_an_extender() -> None:
    names = [link.name for link in links(FleetSpec(members=(MemberSpec("m", mode="managed"),)))]
    assert names[2:] == [
        "m/kube-scheduler>m",
        "m/muster-scheduler>m",
        "m/muster-scheduler>m/extender",
        "m/extender>m",
        "m/operator>m",
    ]


def components_of(member: MemberSpec) -> dict[str, components.Component]:
    current = State(spec=FleetSpec(members=(member,)))
    binaries: defaultdict[str, Path] = defaultdict(lambda: Path("/bin/program"))
    found = components.table(Path("/fleet"), current, binaries).values()
    return {c.name.partition("/")[2]: c for c in found if c.name.startswith("m/")}


def test_two_pairs_are_told_apart_by_host_name_and_each_extender_looks_at_its_own_scheduler() -> None:
    found = components_of(MemberSpec("m", standby=True))
    for scheduler, extender, host in (
        ("kube-scheduler", "extender", "m-control-plane-1"),
        ("kube-scheduler-2", "extender-2", "m-control-plane-2"),
    ):
        assert found[scheduler].argv[1:5] == ["-m", "hack.fleet.named_host", host, "/bin/program"]
        assert f"--scheduler-identity={host}_" in found[extender].argv
    assert found["kube-scheduler"].argv[5:] != found["kube-scheduler-2"].argv[5:]


def test_a_managed_members_extender_follows_the_lease_of_the_second_scheduler() -> None:
    found = components_of(MemberSpec("m", mode="managed"))
    assert "--scheduler-lease=muster-system/muster-scheduler" in found["extender"].argv
    assert "hack.fleet.named_host" not in found["muster-scheduler"].argv
    ordinary = components_of(MemberSpec("m"))
    assert not [a for a in ordinary["extender"].argv if a.startswith("--scheduler")]
    assert "muster-scheduler" not in ordinary


def test_a_pod_of_the_managed_install_has_one_identity_and_each_client_its_own_link() -> None:
    current = State(spec=FleetSpec(members=(MemberSpec("m", mode="managed", standby=True),)))
    found = {a.name: (a.identity, a.client) for a in Cluster("m", Path("/fleet"), current).accesses}
    assert found["kube-scheduler"] == ("kube-scheduler", "m/kube-scheduler")
    assert found["muster-scheduler-2"] == ("muster-extender", "m/muster-scheduler-2")
    assert found["muster-extender"] == ("muster-extender", "m/extender")
    assert found["muster-extender-2"] == ("muster-extender", "m/extender-2")


def test_a_node_has_what_its_shape_says_and_is_ready() -> None:
    shape = NodeShape(
        cpu="4",
        memory="1Gi",
        gpus=2,
        pods=30,
        labels={"zone": "a"},
        taints=("k=v:NoSchedule",),
        extended={"rdma/hca": "1k"},
    )
    node = nodes.node("n", shape)
    assert node["status"]["allocatable"] == {
        "cpu": "4", "memory": "1Gi", "pods": "30", "ephemeral-storage": "1Ti", "nvidia.com/gpu": "2", "rdma/hca": "1k"
    }  # fmt: skip
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "n"
    assert node["metadata"]["labels"]["zone"] == "a"
    assert node["spec"] == {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}
    assert [(c["type"], c["status"]) for c in node["status"]["conditions"]] == [("Ready", "True")]


def test_a_node_without_gpus_does_not_have_the_resource_at_all() -> None:
    assert "nvidia.com/gpu" not in nodes.node("n", NodeShape(gpus=0))["status"]["allocatable"]


@pytest.mark.parametrize("text", ["", "k", "k=v", "k:Never", ":NoSchedule"])
def test_a_taint_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="key=value:Effect"):
        nodes.taint(text)


def test_a_shipped_role_binding_also_binds_the_certificate_user_once() -> None:
    account = {"kind": "ServiceAccount", "name": "muster-extender", "namespace": "muster-system"}
    user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "muster-extender"}
    binding = {"kind": "ClusterRoleBinding", "subjects": [account]}
    once = provision.with_users(binding)
    assert once["subjects"] == [account, user]
    assert provision.with_users(once)["subjects"] == [account, user]
    role = {"kind": "ClusterRole", "rules": []}
    assert provision.with_users(role) == role


VALUES = {
    "KUBECONFIG": "/k", "EXTENDER_URL": "https://127.0.0.1:1", "SERVER_NAME": "s",
    "CA_FILE": "/ca", "CERT_FILE": "/crt", "KEY_FILE": "/key",
}  # fmt: skip


def test_the_shipped_scheduler_configuration_is_used_with_this_machines_paths() -> None:
    shipped = (scheduler_config.SHIPPED / scheduler_config.WITH_EXTENDER).read_text()
    document = scheduler_config.localized(yaml.safe_load(scheduler_config.filled(shipped, VALUES)), Path("/k"))
    assert document["clientConnection"]["kubeconfig"] == "/k"
    tls = {"caFile": "/ca", "certFile": "/crt", "keyFile": "/key", "serverName": "s"}
    assert [(e["urlPrefix"], e["tlsConfig"]) for e in document["extenders"]] == [("https://127.0.0.1:1", tls)] * 2
    assert [e["httpTimeout"] for e in document["extenders"]] == ["2s", "75s"]
    assert "${" not in yaml.safe_dump(document)


def test_the_break_glass_configuration_has_the_same_profiles_and_no_extender() -> None:
    normal, glass = (
        yaml.safe_load(scheduler_config.filled((scheduler_config.SHIPPED / name).read_text(), VALUES))
        for name in (scheduler_config.WITH_EXTENDER, scheduler_config.BREAK_GLASS)
    )
    assert "extenders" not in glass
    assert glass["profiles"] == normal["profiles"]


def test_the_managed_installs_configuration_is_the_shipped_one_with_this_machines_paths() -> None:
    shipped = (scheduler_config.SHIPPED / scheduler_config.SECOND_SCHEDULER).read_text()
    document = scheduler_config.localized(scheduler_config.second(shipped, VALUES), Path("/k"))
    assert document["clientConnection"]["kubeconfig"] == "/k"
    assert document["leaderElection"]["resourceName"] == "muster-scheduler"
    assert [p["schedulerName"] for p in document["profiles"]] == ["muster"]
    tls = {"caFile": "/ca", "certFile": "/crt", "keyFile": "/key", "serverName": "s"}
    assert [(e["urlPrefix"], e["tlsConfig"]) for e in document["extenders"]] == [("https://127.0.0.1:1", tls)] * 2


def test_a_managed_clusters_own_scheduler_knows_no_extender_and_no_profile_of_ours() -> None:
    document = scheduler_config.localized(scheduler_config.providers_own(), Path("/k"))
    assert set(document) == {"apiVersion", "kind", "clientConnection", "leaderElection"}


def test_a_binding_tells_where_its_pod_went() -> None:
    event = audit.flatten(
        {
            "verb": "create",
            "objectRef": {"resource": "pods", "namespace": "ns", "name": "p", "subresource": "binding"},
            "requestObject": {"metadata": {"name": "p", "uid": "u"}, "target": {"kind": "Node", "name": "n"}},
        }
    )
    assert (event.node, event.uid) == ("n", "u")


def test_an_audit_event_is_flattened_to_who_did_what() -> None:
    event = audit.flatten(
        {
            "verb": "create",
            "user": {"username": "muster-extender", "groups": []},
            "objectRef": {"resource": "pods", "namespace": "ns", "name": "p", "subresource": "binding"},
            "responseStatus": {"code": 201},
            "requestURI": "/api/v1/namespaces/ns/pods/p/binding",
            "requestReceivedTimestamp": "2026-01-01T00:00:00.000001Z",
            "stageTimestamp": "2026-01-01T00:00:00.000002Z",
            "userAgent": "muster-extender/0.1.0",
        }
    )
    assert (event.user, event.verb, event.target, event.name, event.code) == (
        "muster-extender", "create", "pods/binding", "p", 201
    )  # fmt: skip


@pytest.mark.parametrize("half", [b"", b'{"verb": "cre', b"x" * 10_000])
def test_an_offset_into_a_log_that_is_being_written_is_where_a_line_begins(tmp_path: Path, half: bytes) -> None:
    log = tmp_path / "audit.log"
    assert audit.size(log) == 0
    log.write_bytes(half)
    assert audit.size(log) == 0
    first = b'{"verb": "create", "pad": "' + b"y" * 5000 + b'"}\n'
    log.write_bytes(first + half)
    mark = audit.size(log)
    assert mark == len(first)
    log.write_bytes(first + b'{"verb": "delete"}\n' + half)
    assert [event.verb for event in audit.read(log, mark)] == ["delete"]
