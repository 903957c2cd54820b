import pytest

from kube.objects.gang_identity import GangIdentity, gang_of, is_native_group
from kube.objects.meta import ObjectMeta, OwnerReference
from kube.objects.pods import PodSpec

HUB = {"muster.dev/hub-id": "h1", "muster.dev/id": "j-abc", "muster.dev/epoch": "3"}


def meta(labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None) -> ObjectMeta:
    return ObjectMeta(namespace="ns", name="p", labels=labels, annotations=annotations)


def test_a_plain_pod_is_in_no_gang() -> None:
    assert gang_of(meta(), PodSpec()) is None
    assert gang_of(meta({"app": "x"}), PodSpec()) is None


def test_a_native_group_is_passed_through_even_if_labelled() -> None:
    native = PodSpec(scheduling_group={"podGroupName": "g"})
    assert is_native_group(native)
    assert gang_of(meta({"scheduling.x-k8s.io/pod-group": "g"}, HUB), native) is None


@pytest.mark.parametrize("label", ["scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io"])
def test_the_pod_group_label_names_the_gang_in_the_pods_namespace(label: str) -> None:
    assert gang_of(meta({label: "g"}), PodSpec()) == GangIdentity(("ns", "g"), "pod-group")


def test_ack_labels_make_a_gang_without_an_object() -> None:
    labels = {
        "pod-group.scheduling.sigs.k8s.io/name": "g",
        "pod-group.scheduling.sigs.k8s.io/min-available": "3",
        "training.kubeflow.org/replica-type": "Worker",
    }
    assert gang_of(meta(labels), PodSpec()) == GangIdentity(("ns", "g"), "labels", "worker", 3)


@pytest.mark.parametrize("text", ["", "0", "-1", "three", "1.5", "٣", "9" * 30])
def test_a_minimum_that_is_no_positive_number_means_all_pods(text: str) -> None:
    labels = {
        "pod-group.scheduling.sigs.k8s.io/name": "g",
        "pod-group.scheduling.sigs.k8s.io/min-available": text,
    }
    gang = gang_of(meta(labels), PodSpec())
    assert gang is not None
    assert gang.min_available is None


def test_the_pod_group_label_wins_over_ack_labels() -> None:
    labels = {"scheduling.x-k8s.io/pod-group": "a", "pod-group.scheduling.sigs.k8s.io/name": "b"}
    gang = gang_of(meta(labels), PodSpec())
    assert gang is not None
    assert (gang.key, gang.source) == (("ns", "a"), "pod-group")


def test_a_hubs_gang_carries_id_and_epoch_and_its_own_role_label_first() -> None:
    labels = {
        "scheduling.x-k8s.io/pod-group": "job",
        "muster.dev/role": "master",
        "training.kubeflow.org/replica-type": "worker",
    }
    gang = gang_of(meta(labels, HUB), PodSpec())
    assert gang == GangIdentity(("ns", "job"), "hub", "master", None, "h1", "j-abc", 3)
    assert gang.from_hub


@pytest.mark.parametrize("epoch", [None, "", "0", "-3", "3.0", "x"])
def test_a_hubs_pod_without_a_good_epoch_matches_no_reservation(epoch: str | None) -> None:
    annotations = {k: v for k, v in (HUB | {"muster.dev/epoch": epoch}).items() if v is not None}
    gang = gang_of(meta({"scheduling.x-k8s.io/pod-group": "job"}, annotations), PodSpec())
    assert gang is not None
    assert gang.epoch == 0


def test_a_hubs_pod_that_lost_its_label_still_belongs_to_its_job() -> None:
    owned = ObjectMeta(
        namespace="ns",
        name="job-worker-1",
        annotations=HUB,
        owner_references=[OwnerReference(kind="PyTorchJob", name="job", controller=True)],
    )
    by_owner = gang_of(owned, PodSpec())
    by_label = gang_of(meta({"job-name": "job"}, HUB), PodSpec())
    assert by_owner is not None
    assert by_label is not None
    assert by_owner.key == by_label.key == ("ns", "job")
