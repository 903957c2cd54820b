"""What TYPE means: client-go restmapper's rules over what a server offers."""

from typing import Any, ClassVar

import msgspec
import pytest

from dispatcher.kubectl_amc.discovery import Kind, UnknownType, discover, resolve
from kube.api.api import Resource
from tests.unit.amc_fakes import FakeServer


def kind(group: str, plural: str, name: str, *short: str, version: str = "v1") -> Kind:
    return Kind(Resource(group, version, plural, name), name.lower(), short)


PODS = kind("", "pods", "Pod", "po")
DEPLOYMENTS = kind("apps", "deployments", "Deployment", "deploy")
INGRESSES = kind("networking.k8s.io", "ingresses", "Ingress", "ing")
JOBS = kind("kubeflow.org", "pytorchjobs", "PyTorchJob")
POD_GROUPS = kind("scheduling.x-k8s.io", "podgroups", "PodGroup", "pg", version="v1alpha1")
OTHER_POD_GROUPS = kind("scheduling.volcano.sh", "podgroups", "PodGroup", "pg", version="v1beta1")
PO = kind("example.com", "po", "Po")
"""A plural that is another kind's short name."""
OFFERED = [PODS, DEPLOYMENTS, INGRESSES, JOBS, POD_GROUPS, OTHER_POD_GROUPS]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pods", PODS),
        ("pod", PODS),
        ("po", PODS),
        ("Pod", PODS),
        ("PODS", PODS),
        ("ing", INGRESSES),
        ("ingress", INGRESSES),
        ("pytorchjob", JOBS),
        ("PyTorchJob", JOBS),
        ("pytorchjobs.kubeflow.org", JOBS),
        ("pytorchjobs.v1.kubeflow.org", JOBS),
        ("deploy.apps", DEPLOYMENTS),
        ("deployments.v1.apps", DEPLOYMENTS),
        ("pg", POD_GROUPS),  # the first that the server names
        ("pg.scheduling.volcano.sh", OTHER_POD_GROUPS),
        ("podgroups.v1beta1.scheduling.volcano.sh", OTHER_POD_GROUPS),
        ("podgroups.scheduling.volcano", OTHER_POD_GROUPS),  # the beginning of a group is enough
    ],
)
def test_type(text: str, expected: Kind):
    assert resolve(OFFERED, text) == expected


def test_a_name_goes_before_a_short_name():
    assert resolve([PODS, PO], "po") == PO


@pytest.mark.parametrize("text", ["foo", "pods.apps", "pytorchjobs.v2.kubeflow.org", "", "."])
def test_unknown_types(text: str):
    with pytest.raises(UnknownType, match=f'the server doesn\'t have a resource type "{text}"'):
        resolve(OFFERED, text)


def test_how_kinds_are_written():
    assert (PODS.qualified, JOBS.qualified) == ("pod", "pytorchjob.kubeflow.org")
    assert (PODS.qualified_plural, JOBS.qualified_plural) == ("pods", "pytorchjobs.kubeflow.org")


async def test_aggregated_discovery_takes_two_requests():
    server = FakeServer()

    kinds = await discover(server)

    assert server.asked == ["/api", "/apis"]
    assert kinds[0] == Kind(Resource("", "v1", "pods", "Pod"), "pod", ("po",))
    assert resolve(kinds, "mcl").resource == Resource(
        "muster.dev", "v1alpha1", "memberclusters", "MemberCluster", False
    )


class OldServer:
    """Before Kubernetes 1.26: lists of groups, then one list of resources per group version."""

    DOCUMENTS: ClassVar[dict[str, dict[str, Any]]] = {
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {
            "kind": "APIGroupList",
            "groups": [
                {
                    "name": "autoscaling",
                    "versions": [{"groupVersion": "autoscaling/v1"}, {"groupVersion": "autoscaling/v2"}],
                    "preferredVersion": {"groupVersion": "autoscaling/v2"},
                }
            ],
        },
        "/api/v1": {
            "groupVersion": "v1",
            "resources": [
                {
                    "name": "pods",
                    "kind": "Pod",
                    "singularName": "",
                    "namespaced": True,
                    "shortNames": ["po"],
                    "verbs": ["get"],
                },
                {"name": "pods/log", "kind": "Pod", "namespaced": True, "verbs": ["get"]},
                {"name": "bindings", "kind": "Binding", "namespaced": True, "verbs": ["create"]},
            ],
        },
        **{
            f"/apis/autoscaling/{version}": {
                "groupVersion": f"autoscaling/{version}",
                "resources": [
                    {
                        "name": "horizontalpodautoscalers",
                        "kind": "HorizontalPodAutoscaler",
                        "verbs": ["get"],
                        "shortNames": ["hpa"],
                    }
                ],
            }
            for version in ("v1", "v2")
        },
    }

    async def read_path(self, path: str, *, accept: str = "", timeout: float | None = None) -> bytes:
        return msgspec.json.encode(self.DOCUMENTS[path])

    def watch_path(self, path: str, *, accept: str = "", silence_seconds: float) -> Any:
        raise NotImplementedError


async def test_discovery_of_a_server_without_the_aggregated_form():
    kinds = await discover(OldServer())

    assert [k.resource.plural for k in kinds] == ["pods", "horizontalpodautoscalers", "horizontalpodautoscalers"]
    assert resolve(kinds, "pod").resource == Resource("", "v1", "pods", "Pod")
    assert resolve(kinds, "hpa").resource.version == "v2"  # the preferred one


async def test_a_group_whose_server_is_away_hides_nothing_else():
    # KEP-3352: a stale group comes without resources, and null where lists could be.
    server = FakeServer()
    stale = {
        "metadata": {"name": "metrics.k8s.io"},
        "versions": [{"version": "v1", "freshness": "Stale", "resources": None}],
    }
    whole = server.discovery
    server.discovery = lambda *, core: {**whole(core=core), "items": [stale, *whole(core=core)["items"]]}  # type: ignore[method-assign]

    assert resolve(await discover(server), "pods").resource.plural == "pods"
