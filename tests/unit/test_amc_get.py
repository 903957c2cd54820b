"""`kubectl amc get` over a hub and members that are played: what is on stdout, what on stderr, which exit code."""

import json
import shlex

import pytest
import yaml

from dispatcher.kubectl_amc.errors import AmcError
from dispatcher.kubectl_amc.get import run
from dispatcher.kubectl_amc.get_options import get_options
from kube.api.errors import Forbidden, StatusError, Unreachable
from tests.unit.amc_fakes import FakeServer, World, job, kubeconfig, pod

SEED_PODS = ["pytorch-test-master-0", "pytorch-test-worker-0", "pytorch-test-worker-1"]


@pytest.fixture
def seed() -> World:
    """The job of the walk-through in cfxxxxxx; nothing in the other member."""
    return World(
        cfxxxxxx=FakeServer({"pytorchjobs": [job("pytorch-test", "Running")], "pods": [pod(n) for n in SEED_PODS]}),
        other=FakeServer(),
    )


async def amc(world: World, line: str, namespace: str = "default") -> int:
    return await run(get_options(shlex.split(line)), world.session(namespace))


def text(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


# --- the walk-through's three tables


async def test_jobs_of_all_members(seed: World):
    assert await amc(seed, "pytorchjob -M") == 0
    assert seed.out == text(
        "NAME           CLUSTER    STATE     AGE     ADOPTION",
        "pytorch-test   cfxxxxxx   Running   6m23s   Y",
    )
    assert seed.err == ""


async def test_pods_of_all_members_have_no_adoption(seed: World):
    assert await amc(seed, "pod -M") == 0
    assert seed.out == text(
        "NAME                    CLUSTER    READY   STATUS    RESTARTS   AGE",
        "pytorch-test-master-0   cfxxxxxx   1/1     Running   0          7m16s",
        "pytorch-test-worker-0   cfxxxxxx   1/1     Running   0          7m16s",
        "pytorch-test-worker-1   cfxxxxxx   1/1     Running   0          7m16s",
    )


async def test_the_job_of_one_member_as_yaml(seed: World):
    assert await amc(seed, "pytorchjob pytorch-test -m cfxxxxxx -oyaml") == 0
    printed = yaml.safe_load(seed.out)
    assert (printed["apiVersion"], printed["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    assert printed["metadata"]["name"] == "pytorch-test"
    assert "annotations" not in printed["metadata"]  # the member's object as it is


# --- columns and rows


async def test_members_are_printed_one_after_the_other_in_one_table():
    world = World(
        west=FakeServer({"pytorchjobs": [job("b", "Created", managed=False)]}),
        east=FakeServer({"pytorchjobs": [job("a-long-name", "Running")]}),
    )

    await amc(world, "pytorchjobs -M")

    assert world.out == text(
        "NAME          CLUSTER   STATE     AGE     ADOPTION",
        "a-long-name   east      Running   6m23s   Y",
        "b             west      Created   6m23s   N",
    )


async def test_wide_shows_what_the_server_keeps_for_it_and_adoption_of_pods(seed: World):
    await amc(seed, "pods -M -o wide")

    assert "   ".join(seed.out.splitlines()[0].split()) == (
        "NAME   CLUSTER   READY   STATUS   RESTARTS   AGE   NODE   ADOPTION"
    )
    assert seed.out.splitlines()[1].split()[-2:] == ["n1", "Y"]


async def test_namespace_is_the_first_column_only_with_all_namespaces():
    member = FakeServer({"pods": [pod("a", "team-a"), pod("b", "team-b")]})

    await amc(everywhere := World(m=member), "pods -M -A --no-headers")
    await amc(somewhere := World(m=member), "pods -M", namespace="team-b")

    assert [line.split()[:3] for line in everywhere.out.splitlines()] == [["team-a", "a", "m"], ["team-b", "b", "m"]]
    assert [line.split()[:2] for line in somewhere.out.splitlines()] == [["NAME", "CLUSTER"], ["b", "m"]]


async def test_cluster_scoped_objects_have_no_namespace():
    await amc(world := World(m=FakeServer({"nodes": [{"metadata": {"name": "n1"}}]})), "nodes -M -A")

    assert world.out.splitlines()[0].split() == ["NAME", "CLUSTER", "AGE", "ADOPTION"]


async def test_labels_come_last(seed: World):
    await amc(seed, "pytorchjob -M --show-labels")

    assert seed.out.splitlines()[0].split()[-2:] == ["ADOPTION", "LABELS"]
    assert seed.out.splitlines()[1].split()[-2:] == ["Y", "muster.dev/managed=true"]


async def test_a_state_that_is_not_there_yet_is_blank():
    await amc(world := World(m=FakeServer({"pytorchjobs": [job("a", None)]})), "pytorchjob -M")

    assert world.out.splitlines()[1] == "a      m                 6m23s   Y"


async def test_a_column_that_only_some_members_have():
    # Members of other versions or dialects print other columns.
    old, new = FakeServer({"pods": [pod("a")]}), FakeServer({"pods": [pod("b", Zone="z1")]})
    old.columns = {"pods": [("Name", 0), ("Status", 0)]}
    new.columns = {"pods": [("Name", 0), ("Zone", 0), ("Status", 0)]}

    await amc(world := World(new=new, old=old), "pods -M")

    assert [line.split() for line in world.out.splitlines()] == [
        ["NAME", "CLUSTER", "ZONE", "STATUS"],
        ["b", "new", "z1", "Running"],
        ["a", "old", "<none>", "Running"],
    ]


async def test_what_members_say_cannot_drive_the_terminal():
    await amc(world := World(m=FakeServer({"pytorchjobs": [job("a", "\x1b[2JRun\nning")]})), "pytorchjob -M")

    assert world.out.splitlines()[1].split()[2] == "\N{REPLACEMENT CHARACTER}[2JRun..."


async def test_several_types_are_several_tables_with_type_before_the_name(seed: World):
    await amc(seed, "pod,pytorchjob -m cfxxxxxx --no-headers")

    assert [line.split()[:1] for line in seed.out.splitlines()] == [
        *([f"pod/{name}"] for name in SEED_PODS),
        [],
        ["pytorchjob.kubeflow.org/pytorch-test"],
    ]


async def test_lists_are_read_in_pages(seed: World):
    seed.members["cfxxxxxx"].page_size = 2

    await amc(seed, "pods -M --no-headers")
    await amc(seed, "pods -M -o name")

    assert len(seed.out.splitlines()) == 6


# --- json, yaml, name


async def test_several_objects_are_one_list(seed: World):
    await amc(seed, "pods -M -o json")

    printed = json.loads(seed.out)
    assert (printed["apiVersion"], printed["kind"]) == ("v1", "List")
    assert [item["metadata"]["name"] for item in printed["items"]] == SEED_PODS
    assert {(item["apiVersion"], item["kind"]) for item in printed["items"]} == {("v1", "Pod")}
    assert {item["metadata"]["annotations"]["muster.dev/cluster"] for item in printed["items"]} == {"cfxxxxxx"}


async def test_a_name_found_in_one_of_all_members_is_one_object(seed: World):
    await amc(seed, "pytorchjob/pytorch-test -M -o json")

    assert json.loads(seed.out)["kind"] == "PyTorchJob"
    assert seed.err == ""


async def test_managed_fields_are_left_out_unless_asked_for():
    managed = job("a", "Running")
    managed["metadata"]["managedFields"] = [{"manager": "kubectl"}]

    await amc(world := World(m=FakeServer({"pytorchjobs": [managed]})), "pytorchjob a -M -o yaml")
    await amc(full := World(m=FakeServer({"pytorchjobs": [managed]})), "pytorchjob a -M -o yaml --show-managed-fields")

    assert "managedFields" not in world.out
    assert "managedFields" in full.out


async def test_strings_that_look_like_something_else_are_quoted_as_kubectl_does():
    one = job("a", "Running")
    one["spec"] = {"time": "2026-08-01T12:00:00Z", "number": "3", "truth": "true", "text": "None", "lines": "a\nb\n"}

    await amc(world := World(m=FakeServer({"pytorchjobs": [one]})), "pytorchjob a -m m -o yaml")

    assert world.out.partition("spec:\n")[2].splitlines() == [
        "  lines: |",
        "    a",
        "    b",
        '  number: "3"',
        "  text: None",
        '  time: "2026-08-01T12:00:00Z"',
        '  truth: "true"',
    ]


async def test_names(seed: World):
    await amc(seed, "pytorchjob -M -o name")

    assert seed.out == "pytorchjob.kubeflow.org/pytorch-test\n"


async def test_nothing_as_json_is_an_empty_list(seed: World):
    assert await amc(seed, "pods -m other -o json") == 0
    assert json.loads(seed.out)["items"] == []


# --- nothing found, wrong names


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("pods -m other", "No resources found in default namespace.\n"),
        ("pods -m other -A", "No resources found\n"),
        ("nodes -M", "No resources found\n"),
    ],
)
async def test_nothing_found_is_said_on_stderr_and_is_no_error(seed: World, line: str, message: str):
    assert await amc(seed, line) == 0
    assert (seed.out, seed.err) == ("", message)


async def test_a_name_that_no_member_has_is_an_error_of_each(seed: World):
    assert await amc(seed, "pytorchjob nope -M") == 1
    assert seed.out == ""
    assert seed.err == text(
        'cluster(cfxxxxxx): pytorchjobs.kubeflow.org "nope" not found',
        'cluster(other): pytorchjobs.kubeflow.org "nope" not found',
    )


async def test_names_that_are_there_are_printed_beside_one_that_is_not(seed: World):
    assert await amc(seed, "pod pytorch-test-master-0 nope -m cfxxxxxx") == 1
    assert [line.split()[0] for line in seed.out.splitlines()] == ["NAME", "pytorch-test-master-0"]
    assert seed.err == 'cluster(cfxxxxxx): pods "nope" not found\n'


async def test_a_type_that_no_member_knows_is_said_once(seed: World):
    assert await amc(seed, "foo -M") == 1
    assert seed.err == 'error: the server doesn\'t have a resource type "foo"\n'


async def test_a_type_that_one_member_does_not_know():
    world = World(a=FakeServer({"pytorchjobs": [job("x", "Running")]}), b=FakeServer(without=("pytorchjobs",)))

    assert await amc(world, "pytorchjobs -M") == 1
    assert world.out.splitlines()[1].split()[:2] == ["x", "a"]
    assert world.err == 'cluster(b): the server doesn\'t have a resource type "pytorchjobs"\n'


async def test_a_member_that_the_hub_does_not_know(seed: World):
    with pytest.raises(AmcError, match=r"no member cluster 'nope'.*kubectl get memberclusters"):
        await amc(seed, "pods -m nope")


async def test_a_hub_without_members():
    with pytest.raises(AmcError, match=r"no member clusters"):
        await amc(World(), "pods -M")


async def test_a_user_who_may_not_read_the_members(seed: World):
    seed.hub.down = Forbidden(403, "Forbidden", 'User "jane" cannot list resource "memberclusters"')

    with pytest.raises(AmcError, match=r"Forbidden.*jane"):
        await amc(seed, "pods -M")


# --- one bad member harms only itself


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (Unreachable("GET https://other/api: connection refused"), "GET https://other/api: connection refused"),
        (StatusError(500, "InternalError", "etcd is gone"), "Error from server (InternalError): etcd is gone"),
    ],
)
async def test_a_member_that_fails_is_reported_and_the_rest_printed(seed: World, failure: StatusError, said: str):
    seed.members["other"].down = failure

    assert await amc(seed, "pytorchjob -M") == 1
    assert seed.out.splitlines()[1].split()[:2] == ["pytorch-test", "cfxxxxxx"]
    assert seed.err == f"cluster(other): {said}\n"


async def test_a_member_whose_kubeconfig_would_run_a_program_is_not_used(seed: World):
    document = yaml.safe_load(kubeconfig("https://other.example:6443"))
    document["users"][0]["user"] = {"exec": {"command": "/bin/evil", "apiVersion": "client.authentication.k8s.io/v1"}}
    seed.register("other", yaml.safe_dump(document))

    assert await amc(seed, "pytorchjob -M") == 1
    assert seed.members["other"].asked == []
    assert seed.err.startswith("cluster(other): its kubeconfig, Secret muster-system/kc-other on the hub, is refused: ")
    assert "evil" not in seed.err


async def test_a_member_without_its_secret(seed: World):
    seed.hub.objects["secrets"] = [s for s in seed.hub.objects["secrets"] if s["metadata"]["name"] != "kc-other"]

    assert await amc(seed, "pytorchjob -M") == 1
    assert "cluster(other): its kubeconfig, Secret muster-system/kc-other on the hub, cannot be read" in seed.err
    assert "pytorch-test" in seed.out


async def test_a_secret_that_does_not_hold_a_kubeconfig(seed: World):
    seed.hub.put(
        "secrets", {"metadata": {"name": "kc-other", "namespace": "muster-system"}, "data": {"config": "eA=="}}
    )

    assert await amc(seed, "pytorchjob -M") == 1
    assert seed.err == "cluster(other): Secret muster-system/kc-other on the hub has no key 'kubeconfig'\n"


async def test_an_answer_that_is_no_table_is_reported(seed: World):
    seed.members["other"].table = lambda *_: {"kind": "Status"}  # type: ignore[method-assign]

    assert await amc(seed, "pytorchjob -M") == 1
    assert seed.err == "cluster(other): the server answered Status instead of a table\n"


async def test_all_members_down_is_not_nothing_found(seed: World):
    for member in seed.members.values():
        member.down = Unreachable("no answer")

    assert await amc(seed, "pods -M") == 1
    assert seed.out == ""
    assert "No resources found" not in seed.err


async def test_a_name_is_not_missing_while_a_member_that_may_have_it_is_down(seed: World):
    # The member that answered does not have it; only the reachable one says so.
    seed.members["cfxxxxxx"].down = Unreachable("no answer")

    assert await amc(seed, "pytorchjob pytorch-test -M") == 1
    assert seed.err == text(
        "cluster(cfxxxxxx): no answer", 'cluster(other): pytorchjobs.kubeflow.org "pytorch-test" not found'
    )


async def test_names_cannot_lead_to_other_paths(seed: World):
    await amc(seed, "pods x?watch=1#y -m cfxxxxxx", namespace="../secrets")

    assert "/api/v1/namespaces/..%2Fsecrets/pods/x%3Fwatch%3D1%23y" in seed.members["cfxxxxxx"].asked
