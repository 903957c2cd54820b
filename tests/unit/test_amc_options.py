"""The command line of kubectl amc: kubectl's flags in kubectl's forms."""

import argparse
import shlex

import pytest

from dispatcher.kubectl_amc.__main__ import client_options, main
from dispatcher.kubectl_amc.errors import UsageError
from dispatcher.kubectl_amc.get_options import GetOptions, Target, get_options
from dispatcher.kubectl_amc.options import ConnectionOptions, seconds, verb_of


def parsed(line: str) -> GetOptions:
    return get_options(shlex.split(line))


# --- which members


def test_all_members_or_some():
    assert parsed("pods -M").clusters is None
    assert parsed("pods -m c1").clusters == ("c1",)
    assert parsed("pods -m c1,c2").clusters == ("c1", "c2")
    assert parsed("pods -mc1").clusters == ("c1",)
    assert parsed("pods --clusters=c1").clusters == ("c1",)


@pytest.mark.parametrize("line", ["pods", "pods -m ,"])
def test_members_have_to_be_named(line: str):
    with pytest.raises(UsageError, match="-M for all of them, or -m"):
        parsed(line)


def test_not_all_and_some():
    with pytest.raises(UsageError, match="not both"):
        parsed("pods -M -m c1")


# --- what


@pytest.mark.parametrize(
    ("line", "targets"),
    [
        ("pods -M", [Target("pods")]),
        ("pods a b -M", [Target("pods", ("a", "b"))]),
        ("-M pods -o yaml a", [Target("pods", ("a",))]),  # flags between arguments
        ("pods,nodes -M", [Target("pods"), Target("nodes")]),
        ("pods,nodes a -M", [Target("pods", ("a",)), Target("nodes", ("a",))]),
        ("pod/a pod/b node/c -M", [Target("pod", ("a", "b")), Target("node", ("c",))]),
        ("pods a a -M", [Target("pods", ("a",))]),
    ],
)
def test_types_and_names(line: str, targets: list[Target]):
    assert parsed(line).targets == tuple(targets)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-M", "say what to get"),
        ("pods pod/a -M", "every argument has to be one"),
        ("pod/ -M", "every argument has to be one"),
        (", -M", "names no TYPE"),
        ("pods a -M -A", "by name across all namespaces"),
        ("pods a -M -l app=x", "selectors cannot be given together with names"),
        ("pods,nodes -M -w", "can be watched at a time"),
        ("pods a b -M -w", "can be watched at a time"),
        ("pods -M -o table", "invalid choice: 'table'"),
        ("pods -M --nope", "unrecognized arguments: --nope"),
        ("pods -M --watch=maybe", "give true or false"),
        ("pods -M --request-timeout soon", "'soon' is no duration"),
        ("pods -M -n", "expected one argument"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(line: str, message: str):
    with pytest.raises(UsageError, match=message):
        parsed(line)


@pytest.mark.parametrize("form", ["-o yaml", "-oyaml", "-o=yaml", "--output yaml", "--output=yaml"])
def test_forms_of_a_flag_with_a_value(form: str):
    assert parsed(f"pods -M {form}").output == "yaml"


def test_switches_take_true_and_false():
    assert parsed("pods -M --watch=true").watch
    assert not parsed("pods -M --watch=false").watch
    assert parsed("pods -M=true -A -w").all_namespaces
    assert not parsed("pods -M --no-headers").headers


# --- kubectl's own flags


def test_connection_flags_may_stand_before_and_behind_the_verb():
    assert verb_of(["--context", "x", "-n", "get", "get", "pods", "-M"]) == (
        "get",
        ["--context", "x", "-n", "get", "pods", "-M"],
    )
    assert verb_of(["--context=x", "get"]) == ("get", ["--context=x"])
    assert verb_of(["-nget", "--insecure-skip-tls-verify", "get"]) == ("get", ["-nget", "--insecure-skip-tls-verify"])
    assert verb_of(["--help"]) == ("", ["--help"])


def test_connection_flags():
    line = (
        "pods -M -n team-a --kubeconfig f --context c --cluster k --user u -s https://h --token t --as jane "
        "--as-group g1 --as-group g2 --request-timeout 1m30s -v 6 --insecure-skip-tls-verify "
        "--certificate-authority ca --client-certificate cc --client-key ck --tls-server-name sn"
    )

    assert parsed(line).connection == ConnectionOptions(
        kubeconfig="f",
        context="c",
        cluster="k",
        user="u",
        namespace="team-a",
        server="https://h",
        token="t",
        tls_server_name="sn",
        certificate_authority="ca",
        client_certificate="cc",
        client_key="ck",
        insecure_skip_tls_verify=True,
        impersonate_user="jane",
        impersonate_groups=("g1", "g2"),
        request_timeout=90.0,
        verbosity=6,
    )


def test_a_token_is_never_shown():
    assert "s3cret" not in repr(parsed("pods -M --token s3cret"))


@pytest.mark.parametrize(
    ("text", "expected"), [("0", 0.0), ("5", 5.0), ("5s", 5.0), ("500ms", 0.5), ("1m30s", 90.0), ("1.5h", 5400.0)]
)
def test_durations(text: str, expected: float):
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "5x", "s", "1m 30s", "-5s"])
def test_no_durations(text: str):
    with pytest.raises(argparse.ArgumentTypeError):
        seconds(text)


def test_the_limit_of_a_call():
    # 10 s unless asked otherwise, so that a member that hangs does not hold up the others; kubectl's 0 means no limit.
    assert client_options(ConnectionOptions()).call_seconds == 10.0
    assert client_options(ConnectionOptions(request_timeout=2.5)).call_seconds == 2.5
    assert client_options(ConnectionOptions(request_timeout=0.0)).call_seconds >= 3600.0


# --- the program


@pytest.mark.parametrize(
    ("arguments", "code", "where"),
    [
        ([], 0, "out"),
        (["--help"], 0, "out"),
        (["get"], 1, "err"),
        (["frobnicate"], 1, "err"),
        (["-n"], 1, "err"),
        (["get", "pods", "-M", "--kubeconfig", "/nonexistent/file"], 1, "err"),
    ],
)
def test_exit_codes_and_where_messages_go(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, where: str
):
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert bool(captured.out) == (where == "out")
    assert bool(captured.err) == (where == "err")


def test_help_of_a_verb(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        main(["get", "--help"])

    assert end.value.code == 0
    assert "--all-clusters" in capsys.readouterr().out
