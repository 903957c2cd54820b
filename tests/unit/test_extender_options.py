"""The extender's command line."""

from pathlib import Path

import pytest
import yaml

from extender.options import parse

TLS = ["--tls-cert=a.crt", "--tls-key=a.key", "--client-ca=ca.crt"]
MEMBER = Path(__file__).parents[2] / "manifests" / "base" / "member"


def test_defaults_fit_the_scheduler_configuration_that_is_shipped():
    options = parse(TLS)
    filters, binds = yaml.safe_load((MEMBER / "scheduler-config.yaml").read_text())["extenders"]
    assert options.filter_deadline < float(filters["httpTimeout"].removesuffix("s"))
    assert options.bind_hold < float(binds["httpTimeout"].removesuffix("s"))
    assert options.core.bind_answer_margin > options.bind_post_timeout
    assert options.client_names == {"system:kube-scheduler"}
    assert options.scheduler_lease == ("kube-system", "kube-scheduler")
    assert options.scheduler_identity.endswith("_")
    assert options.identity.endswith(":8443")


def test_a_scheduler_without_leader_election_has_no_lease_to_follow():
    assert parse([*TLS, "--scheduler-leader-election=false"]).scheduler_lease is None


def test_every_tunable_of_the_core_is_an_option():
    options = parse([*TLS, "--assembling-hold=7", "--max-shapes=10", "--scheduler-name=default-scheduler"])
    assert options.core.assembling_hold == 7.0
    assert options.core.max_shapes == 10
    assert options.core.scheduler_name == "default-scheduler"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--tls-cert"),
        ([*TLS, "--listen=8443"], "HOST:PORT"),
        ([*TLS, "--listen=127.0.0.1:99999"], "HOST:PORT"),
        ([*TLS, "--bind-hold=-1"], "above 0"),
        ([*TLS, "--bind-hold=nan"], "above 0"),
        ([*TLS, "--bind-hold=4"], "--bind-hold must be above"),
        ([*TLS, "--bind-post-timeout=3"], "time fence"),
        ([*TLS, "--lease-margin=12"], "--lease-seconds"),
        ([*TLS, "--scheduler-lease=kube-scheduler"], "NAMESPACE/NAME"),
        ([*TLS, "--scheduler-leader-election=maybe"], "true nor false"),
        ([*TLS, "--bind=3"], "--bind"),
    ],
)
def test_what_cannot_be_is_said_and_exits_with_2(arguments, said, capsys):
    with pytest.raises(SystemExit) as exit_:
        parse(arguments)
    assert exit_.value.code == 2
    assert said in capsys.readouterr().err
