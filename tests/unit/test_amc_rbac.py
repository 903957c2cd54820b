"""What the roles for people on the hub give, and to whom they are aggregated (manifests/base/hub/rbac-users.yaml)."""

from pathlib import Path
from typing import Any

import pytest
import yaml

ROLES: dict[str, dict[str, Any]] = {
    role["metadata"]["name"]: role
    for role in yaml.safe_load_all((Path(__file__).parents[2] / "manifests/base/hub/rbac-users.yaml").read_text())
}
READ = {"get", "list", "watch"}
AGGREGATE = "rbac.authorization.k8s.io/aggregate-to-"


def aggregated_to(role: str) -> set[str]:
    labels = ROLES[role]["metadata"].get("labels", {})
    return {
        key.removeprefix(AGGREGATE) for key, value in labels.items() if key.startswith(AGGREGATE) and value == "true"
    }


@pytest.mark.parametrize("name", ROLES)
def test_no_role_has_a_wildcard(name: str):
    assert not [rule for rule in ROLES[name]["rules"] if "*" in rule["apiGroups"] + rule["resources"] + rule["verbs"]]


@pytest.mark.parametrize("name", ROLES)
def test_secrets_are_given_in_one_namespace_to_nobody_by_default(name: str):
    # A member's kubeconfig is the dispatcher's identity there.
    if any("secrets" in rule["resources"] for rule in ROLES[name]["rules"]):
        assert (ROLES[name]["kind"], ROLES[name]["metadata"]["namespace"]) == ("Role", "muster-system")
        assert aggregated_to(name) == set()


@pytest.mark.parametrize("name", ["muster-viewer", "muster-viewer-members"])
def test_what_view_gets_is_for_reading(name: str):
    assert aggregated_to(name) == {"view", "edit", "admin"}
    assert all(set(rule["verbs"]) <= READ for rule in ROLES[name]["rules"])


def test_editors_write_jobs_and_policies_only():
    # Bindings, queues and queue units have one writer, the dispatcher; quota and members are for cluster admins.
    written = {resource for rule in ROLES["muster-editor"]["rules"] for resource in rule["resources"]}

    assert aggregated_to("muster-editor") == {"edit", "admin"}
    assert written == {"pytorchjobs", "propagationpolicies"}


def test_every_kind_of_the_hub_can_be_seen():
    crds = Path(__file__).parents[2] / "manifests/crds/hub"
    kinds = {tuple(path.stem.rsplit("_", 1)) for path in crds.glob("*_*.yaml")}
    seen = {
        (group, resource)
        for name in ("muster-viewer", "muster-viewer-members")
        for rule in ROLES[name]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }

    assert kinds <= seen
