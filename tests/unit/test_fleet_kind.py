"""What is rendered for the fleet on kind. kind itself is not run by the tests."""

import os
from pathlib import Path

import pytest
import yaml

from hack.fleet import scheduler_config
from hack.fleet.__main__ import main
from hack.kind import configs


def test_clusters_have_distinct_networks() -> None:
    networks = [configs.subnets(i) for i in range(3)]
    assert [(n.pods, n.services) for n in networks] == [
        ("10.10.0.0/16", "10.11.0.0/16"),
        ("10.12.0.0/16", "10.13.0.0/16"),
        ("10.14.0.0/16", "10.15.0.0/16"),
    ]


def test_a_members_scheduler_gets_its_configuration_whichever_kubeadm_version_kind_writes() -> None:
    document = configs.cluster_config("member1", 1, Path("/out/member1"), workers=2)
    control_plane = document["nodes"][0]
    assert control_plane["extraMounts"] == [
        {"hostPath": "/out/member1", "containerPath": "/etc/muster", "readOnly": True}
    ]
    patches = {p["apiVersion"]: p["scheduler"] for p in map(yaml.safe_load, control_plane["kubeadmConfigPatches"])}
    path = "/etc/muster/scheduler.yaml"
    # v1beta3 has a map of arguments, v1beta4 a list; a patch of the wrong version is skipped without a word.
    assert patches["kubeadm.k8s.io/v1beta3"]["extraArgs"] == {"config": path}
    assert patches["kubeadm.k8s.io/v1beta4"]["extraArgs"] == [{"name": "config", "value": path}]
    for patch in patches.values():
        assert [v["mountPath"] for v in patch["extraVolumes"]] == ["/etc/muster"]
    assert [n["role"] for n in document["nodes"]] == ["control-plane", "worker", "worker"]


def test_the_hub_is_a_plain_cluster() -> None:
    assert configs.cluster_config("hub", 0, None, workers=0)["nodes"] == [{"role": "control-plane"}]


def test_scheduler_and_extender_agree_on_address_and_files() -> None:
    shipped = (scheduler_config.SHIPPED / scheduler_config.WITH_EXTENDER).read_text()
    config = yaml.safe_load(configs.scheduler_config(shipped))
    pod = configs.extender_pod(1000, 1000)
    [container] = pod["spec"]["containers"]
    flags = dict(flag.removeprefix("--").split("=") for flag in container["command"][1:])
    assert {f"https://{flags['listen']}"} == {e["urlPrefix"] for e in config["extenders"]}
    assert flags["client-ca"] == config["extenders"][0]["tlsConfig"]["caFile"]
    assert config["clientConnection"]["kubeconfig"] == "/etc/kubernetes/scheduler.conf"
    # Reachable from its scheduler only, and it starts without being scheduled.
    assert flags["listen"].startswith("127.0.0.1:")
    assert pod["spec"]["hostNetwork"] is True
    assert container["imagePullPolicy"] == "Never"


def test_a_members_kubeconfig_on_the_hub_names_the_member_as_the_hub_can_reach_it() -> None:
    local = yaml.safe_dump({"clusters": [{"name": "k", "cluster": {"server": "https://127.0.0.1:40001"}}]})
    moved = yaml.safe_load(configs.on_docker_network(local, "member2"))
    assert moved["clusters"][0]["cluster"]["server"] == "https://member2-control-plane:6443"
    secret, member = configs.member_objects("member2", "text")
    assert secret["stringData"] == {"kubeconfig": "text"}
    assert member["spec"]["kubeconfigSecret"]["name"] == secret["metadata"]["name"]


def test_without_docker_the_user_is_told_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(os.environ, "FLEET", "kind")
    monkeypatch.setitem(os.environ, "PATH", str(tmp_path))
    assert main(["up"]) == 1
    assert "needs docker, kind, kubectl on PATH" in capsys.readouterr().err
