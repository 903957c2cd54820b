"""The hub as kubectl would reach it, from kubeconfig files and flags (client-go tools/clientcmd)."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.kubectl_amc.connection import Hub, effective, impersonation, load_hub, merged
from dispatcher.kubectl_amc.errors import AmcError
from dispatcher.kubectl_amc.options import ConnectionOptions

Json = dict[str, Any]


def config(name: str, server: str, user: Json | None = None, *, current: bool = True) -> Json:
    return {
        "current-context": name if current else "",
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": f"ns-{name}"}}],
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "users": [{"name": name, "user": user or {"token": f"token-{name}"}}],
    }


def cluster(document: Json) -> Json:
    found: Json = document["clusters"][0]["cluster"]
    return found


def user(document: Json) -> Json:
    found: Json = document["users"][0]["user"]
    return found


def write(path: Path, document: Json) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document))
    return path


# --- which files


def test_the_file_in_the_home_folder(tmp_path: Path):
    write(tmp_path / ".kube/config", config("a", "https://a"))

    assert load_hub(ConnectionOptions(), {}, tmp_path).server == "https://a"


def test_a_colon_list_of_files_some_of_them_missing(tmp_path: Path):
    first = write(tmp_path / "1", config("a", "https://a", current=False))
    second = write(tmp_path / "2", config("b", "https://b"))
    environment = {"KUBECONFIG": f"{first}:{tmp_path / 'missing'}:{second}"}

    hub = load_hub(ConnectionOptions(), environment, tmp_path)
    other = load_hub(ConnectionOptions(context="a"), environment, tmp_path)

    assert (hub.server, hub.namespace) == ("https://b", "ns-b")
    assert (other.server, other.namespace) == ("https://a", "ns-a")


def test_the_flag_goes_before_the_environment(tmp_path: Path):
    named = write(tmp_path / "1", config("a", "https://a"))
    environment = {"KUBECONFIG": str(write(tmp_path / "2", config("b", "https://b")))}

    assert load_hub(ConnectionOptions(kubeconfig=str(named)), environment, tmp_path).server == "https://a"


def test_the_file_of_the_flag_has_to_exist(tmp_path: Path):
    with pytest.raises(AmcError, match="no such file"):
        load_hub(ConnectionOptions(kubeconfig=str(tmp_path / "missing")), {}, tmp_path)


@pytest.mark.parametrize("text", ["{", "- a\n- b\n", "just text"])
def test_a_file_that_is_no_kubeconfig(tmp_path: Path, text: str):
    path = tmp_path / "broken"
    path.write_text(text)

    with pytest.raises(AmcError, match="broken: not a kubeconfig"):
        load_hub(ConnectionOptions(), {"KUBECONFIG": str(path)}, tmp_path)


def test_relative_paths_are_relative_to_their_file(tmp_path: Path):
    settings = {"client-certificate": "pki/me.crt", "client-key": "/abs/me.key", "exec": {"command": "./login"}}
    document = config("a", "https://a", settings)
    document["clusters"][0]["cluster"]["certificate-authority"] = "ca.crt"

    hub = load_hub(ConnectionOptions(), {"KUBECONFIG": str(write(tmp_path / "x/config", document))}, tmp_path)

    assert cluster(hub.document)["certificate-authority"] == str(tmp_path / "x/ca.crt")
    assert user(hub.document) == {
        "client-certificate": str(tmp_path / "x/pki/me.crt"),
        "client-key": "/abs/me.key",
        "exec": {"command": str(tmp_path / "x/login")},
    }


def test_a_program_found_on_path_stays_as_it_is(tmp_path: Path):
    document = config("a", "https://a", {"exec": {"command": "aws"}})

    hub = load_hub(ConnectionOptions(), {"KUBECONFIG": str(write(tmp_path / "c", document))}, tmp_path)

    assert user(hub.document)["exec"]["command"] == "aws"


# --- merge and flags


def test_the_first_to_name_a_thing_wins():
    one, two = config("a", "https://first"), config("a", "https://second")

    assert cluster(effective(merged([one, two]), ConnectionOptions()))["server"] == "https://first"


def test_flags_go_before_the_file():
    document = merged([config("a", "https://a"), config("b", "https://b")])
    options = ConnectionOptions(cluster="b", user="b", namespace="n", tls_server_name="s")

    chosen = effective(document, options)

    assert cluster(chosen) == {"server": "https://b", "tls-server-name": "s"}
    assert user(chosen) == {"token": "token-b"}
    assert Hub(chosen).namespace == "n"


def test_a_server_and_a_token_are_enough():
    chosen = effective(merged([]), ConnectionOptions(server="https://h", token="t"))

    assert (cluster(chosen), user(chosen)) == ({"server": "https://h"}, {"token": "t"})
    assert Hub(chosen).namespace == "default"


def test_a_token_replaces_all_other_credentials():
    document = config("a", "https://a", {"client-certificate-data": "x", "client-key-data": "y", "exec": {}})

    assert user(effective(merged([document]), ConnectionOptions(token="t"))) == {"token": "t"}


def test_not_checking_the_certificate_leaves_the_authority_out():
    document = config("a", "https://a")
    document["clusters"][0]["cluster"]["certificate-authority-data"] = "x"

    chosen = effective(merged([document]), ConnectionOptions(insecure_skip_tls_verify=True))

    assert cluster(chosen) == {"server": "https://a", "insecure-skip-tls-verify": True}


def test_the_document_itself_is_not_changed():
    document = merged([config("a", "https://a")])

    effective(document, ConnectionOptions(server="https://other", namespace="n", token="t"))

    assert cluster(effective(document, ConnectionOptions())) == {"server": "https://a"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ConnectionOptions(context="x"), "no context 'x'"),
        (ConnectionOptions(cluster="x"), "no cluster 'x'"),
        (ConnectionOptions(user="x"), "no user 'x'"),
    ],
)
def test_names_that_are_not_there(options: ConnectionOptions, message: str):
    with pytest.raises(AmcError, match=message):
        effective(merged([config("a", "https://a")]), options)


def test_no_hub_at_all():
    with pytest.raises(AmcError, match="set a current context"):
        effective(merged([]), ConnectionOptions())


# --- impersonation, loopback


def test_impersonation():
    document = effective(merged([config("a", "https://a")]), ConnectionOptions())

    assert impersonation(ConnectionOptions(), document) == []
    assert impersonation(ConnectionOptions(impersonate_user="jane", impersonate_groups=("g1", "g2")), document) == [
        ("Impersonate-User", "jane"),
        ("Impersonate-Group", "g1"),
        ("Impersonate-Group", "g2"),
    ]


def test_impersonation_of_the_kubeconfig():
    document = effective(merged([config("a", "https://a", {"as": "jane", "as-groups": ["g"]})]), ConnectionOptions())

    assert impersonation(ConnectionOptions(), document) == [("Impersonate-User", "jane"), ("Impersonate-Group", "g")]


def test_a_group_alone_cannot_be_impersonated():
    document = effective(merged([config("a", "https://a")]), ConnectionOptions())

    with pytest.raises(AmcError, match="--as-group needs --as"):
        impersonation(ConnectionOptions(impersonate_groups=("g",)), document)


@pytest.mark.parametrize(
    ("server", "local"),
    [
        ("https://127.0.0.1:6443", True),
        ("https://localhost:6443", True),
        ("https://[::1]:6443", True),
        ("https://hub.example:6443", False),
        ("https://localhost.example:6443", False),
    ],
)
def test_members_may_be_on_loopback_only_where_the_hub_is(server: str, local: bool):
    assert Hub(effective(merged([config("a", server)]), ConnectionOptions())).is_local is local


def test_secrets_are_not_shown():
    assert "token-a" not in repr(Hub(effective(merged([config("a", "https://a")]), ConnectionOptions())))
