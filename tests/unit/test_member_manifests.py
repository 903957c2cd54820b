"""The manifests of a member: parseable, least privilege, and of one mind with the extender's options."""

from pathlib import Path

import pytest
import yaml

from extender.options import parse

MEMBER = Path(__file__).parents[2] / "manifests" / "base" / "member"


def documents(name):
    return [document for document in yaml.safe_load_all((MEMBER / name).read_text()) if document]


def of_kind(name, kind):
    return [document for document in documents(name) if document["kind"] == kind]


@pytest.mark.parametrize("role", of_kind("rbac-extender.yaml", "ClusterRole") + of_kind("rbac-extender.yaml", "Role"))
def test_no_wildcards_no_secrets_no_writes_to_nodes_or_pods(role):
    for rule in role["rules"]:
        assert "*" not in rule["apiGroups"] + rule["resources"] + rule["verbs"]
        assert "secrets" not in rule["resources"]
        writes = set(rule["verbs"]) - {"get", "list", "watch"}
        if "nodes" in rule["resources"]:
            assert not writes
        if "pods" in rule["resources"]:
            assert writes <= {"patch"}
        assert "delete" not in writes


def test_both_identities_have_the_same_rights():
    bindings = of_kind("rbac-extender.yaml", "ClusterRoleBinding") + of_kind("rbac-extender.yaml", "RoleBinding")
    assert len(bindings) == 3
    for binding in bindings:
        assert {(s["kind"], s["name"]) for s in binding["subjects"]} == {
            ("User", "muster-extender"),
            ("ServiceAccount", "muster-extender"),
        }


def scheduler_configurations():
    second = of_kind("second-scheduler.yaml", "ConfigMap")[0]["data"]["scheduler-config.yaml"]
    return [documents("scheduler-config.yaml")[0], yaml.safe_load(second)]


@pytest.mark.parametrize("configuration", scheduler_configurations())
def test_two_entries_that_verify_what_they_talk_to(configuration):
    filters, binds = configuration["extenders"]
    assert (filters["filterVerb"], filters["preemptVerb"], filters["httpTimeout"]) == ("filter", "preempt", "2s")
    assert "bindVerb" not in filters
    assert (binds["bindVerb"], binds["httpTimeout"]) == ("bind", "75s")
    for entry in (filters, binds):
        assert entry["nodeCacheCapable"] is True
        assert entry["ignorable"] is False
        assert entry["enableHTTPS"] is True
        assert {"caFile", "certFile", "keyFile", "serverName"} == set(entry["tlsConfig"])
    assert configuration["podMaxBackoffSeconds"] == 2


def test_the_exact_plan_profile_stands_beside_the_default_one():
    for name in ("scheduler-config.yaml", "scheduler-config-break-glass.yaml"):
        default, muster = documents(name)[0]["profiles"]
        assert default == {"schedulerName": "default-scheduler"}
        assert muster == {"schedulerName": "muster", "percentageOfNodesToScore": 100}


def test_break_glass_differs_by_the_extenders_alone():
    shipped, glass = documents("scheduler-config.yaml")[0], documents("scheduler-config-break-glass.yaml")[0]
    del shipped["extenders"]
    assert glass == shipped


def test_a_second_scheduler_serves_no_profile_of_the_first():
    configuration = scheduler_configurations()[1]
    assert [profile["schedulerName"] for profile in configuration["profiles"]] == ["muster"]


def pods():
    second = of_kind("second-scheduler.yaml", "Deployment")[0]["spec"]["template"]["spec"]
    return [documents("extender-static-pod.yaml")[0]["spec"], second]


@pytest.mark.parametrize("spec", pods())
def test_pods_run_with_nothing_they_do_not_need(spec):
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize("spec", pods())
def test_the_extender_understands_its_arguments(spec):
    (extender,) = [container for container in spec["containers"] if container["name"] == "extender"]
    options = parse(extender["args"])
    assert options.listen == ("127.0.0.1", 8443)
    assert options.metrics_listen[1] == 8444


def test_a_pod_is_scheduled_by_somebody_it_does_not_need():
    static, second = pods()
    assert "schedulerName" not in static
    assert second["schedulerName"] == "default-scheduler"


def test_only_the_managed_install_looks_out_for_a_scheduler_without_extender():
    static, second = pods()
    shared = []
    for spec in (static, second):
        (extender,) = [container for container in spec["containers"] if container["name"] == "extender"]
        shared.append(parse(extender["args"]).shared_nodes)
    assert shared == [False, True]
