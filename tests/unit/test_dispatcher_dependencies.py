import pytest

from dispatcher.dependencies import Dependency, dependencies, dependency_copy
from tests import samples
from tests.unit.dispatcher_objects import read

VALID = sorted(name for name, expected in samples.EXPECTED.items() if expected["valid"])


@pytest.mark.parametrize("name", VALID)
def test_samples_depend_on_what_is_expected(name: str) -> None:
    job = read(samples.job(name))

    found = dependencies(role.template for role in job.roles)

    assert [{"kind": each.kind, "name": each.name} for each in found] == samples.EXPECTED[name]["dependencies"]


def test_a_dependency_is_optional_only_if_every_reference_says_so() -> None:
    def container(**extra: object) -> dict[str, object]:
        return {"envFrom": [{"configMapRef": {"name": "flags", **extra}}]}

    both = {"spec": {"containers": [container(optional=True), container()]}}
    one = {"spec": {"containers": [container(optional=True)]}}

    assert dependencies([one]) == [Dependency("ConfigMap", "flags", optional=True)]
    assert dependencies([both]) == [Dependency("ConfigMap", "flags")]


def test_the_default_service_account_is_nobodys_dependency() -> None:
    assert dependencies([{"spec": {"serviceAccountName": "default"}}]) == []
    assert dependencies([{"spec": {"serviceAccount": "old-field"}}]) == [Dependency("ServiceAccount", "old-field")]


def test_drivers_secrets_are_found() -> None:
    volumes = [
        {"name": "a", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "csi-key"}}},
        {"name": "b", "rbd": {"secretRef": {"name": "ceph-key"}}},
        {"name": "c", "azureFile": {"secretName": "azure-key"}},
    ]

    found = dependencies([{"spec": {"volumes": volumes}}])

    assert found == [Dependency("Secret", name) for name in ("azure-key", "ceph-key", "csi-key")]


def test_odd_templates_depend_on_nothing() -> None:
    assert dependencies([{}, {"spec": None}, {"spec": {"volumes": [1, {"secret": None}], "containers": "x"}}]) == []


# --- copies

SERVER_SIDE = {
    "uid": "u",
    "resourceVersion": "7",
    "generation": 2,
    "creationTimestamp": "2026-01-01T00:00:00Z",
    "managedFields": [{}],
    "ownerReferences": [{"name": "app"}],
    "finalizers": ["kubernetes.io/pvc-protection"],
}


def test_a_copy_keeps_the_users_part_only() -> None:
    annotations = {"team": "a", "kubectl.kubernetes.io/last-applied-configuration": "{}"}
    document = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "flags", "namespace": "team-a", "annotations": annotations, **SERVER_SIDE},
        "data": {"lr": "1"},
    }

    assert dependency_copy(document) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "flags", "namespace": "team-a", "annotations": {"team": "a"}},
        "data": {"lr": "1"},
    }


def test_a_claim_is_not_bound_to_the_hubs_volume() -> None:
    document = {
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "data",
            "annotations": {"pv.kubernetes.io/bind-completed": "yes", "volume.kubernetes.io/selected-node": "n1"},
        },
        "spec": {"volumeName": "pvc-1", "storageClassName": "fast"},
        "status": {"phase": "Bound"},
    }

    assert dependency_copy(document) == {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {"storageClassName": "fast"},
    }


def test_a_service_account_gets_its_own_tokens_there() -> None:
    document = {
        "kind": "ServiceAccount",
        "metadata": {"name": "w"},
        "secrets": [{"name": "w-token"}],
        "imagePullSecrets": [{"name": "pull"}],
    }

    assert "secrets" not in dependency_copy(document)
    assert dependency_copy(document)["imagePullSecrets"] == [{"name": "pull"}]


def test_a_token_of_the_hub_is_of_no_use_in_a_member() -> None:
    document = {"kind": "Secret", "type": "kubernetes.io/service-account-token", "metadata": {"name": "w-token"}}

    with pytest.raises(ValueError, match="'w-token' is a ServiceAccount token of the hub"):
        dependency_copy(document)
