"""The table of third-party programs the fleet runs, each pinned as a Go module with its checksum.

To move a version: change it, take the new `Sum` from `go mod download -json MODULE@vVERSION`, run
`python -m hack.fleet build`.
"""

from dataclasses import dataclass
from enum import Enum


class Recipe(Enum):
    """How a program becomes the dependency of a tiny module of ours."""

    PLAIN = "plain"
    """`go get MODULE@VERSION`, then build its packages."""
    KUBERNETES = "kubernetes"
    """The release's own go.mod with its staging folders turned into published versions (kubernetes#79384)."""


@dataclass(frozen=True, slots=True)
class Program:
    """One Go module and the binaries the fleet builds from it.

    `binaries` maps the name of the binary to its package path. `checksum` is the `h1:` sum of the module's zip.
    """

    name: str
    module: str
    version: str
    checksum: str
    binaries: dict[str, str]
    ldflags: tuple[str, ...] = ()
    recipe: Recipe = Recipe.PLAIN
    assets: str = ""
    """A folder of the module to keep beside the binaries, as `assets`."""

    @property
    def reference(self) -> str:
        """The module query `MODULE@vVERSION`."""
        return f"{self.module}@v{self.version}"

    @property
    def key(self) -> str:
        """The folder of the program in the cache."""
        return f"{self.name}-{self.version}"


KUBERNETES_VERSION = "1.36.3"
_KUBERNETES_MINOR = KUBERNETES_VERSION.split(".")[1]

ETCD = Program(
    name="etcd",
    module="go.etcd.io/etcd/server/v3",
    version="3.6.16",
    checksum="h1:sLkpvz3RFtiNd/yPrZBKz5kT+XO1ZJkhmuUJeqc7OmA=",
    binaries={"etcd": "go.etcd.io/etcd/server/v3"},
)

KUBERNETES = Program(
    name="kubernetes",
    module="k8s.io/kubernetes",
    version=KUBERNETES_VERSION,
    checksum="h1:qDQdoMiluAE2Eab6Fa52YV+WjiGz9mZFFoagEA6cI+o=",
    binaries={
        name: f"k8s.io/kubernetes/cmd/{name}"
        for name in ("kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubectl")
    },
    # Without these the gates and APIs are right, but /version is a placeholder and kubectl's skew check complains.
    ldflags=(
        f"-X k8s.io/component-base/version.gitVersion=v{KUBERNETES_VERSION}",
        "-X k8s.io/component-base/version.gitMajor=1",
        f"-X k8s.io/component-base/version.gitMinor={_KUBERNETES_MINOR}",
        "-X k8s.io/component-base/version.gitTreeState=clean",
        "-X k8s.io/component-base/version.gitCommit=gomodule",
        f"-X k8s.io/client-go/pkg/version.gitVersion=v{KUBERNETES_VERSION}",
    ),
    recipe=Recipe.KUBERNETES,
)

KWOK = Program(
    name="kwok",
    module="sigs.k8s.io/kwok",
    version="0.8.0",
    checksum="h1:OTIOTwgROqPMovcTwxICx2eYQ4AwLpSx5EpjbDKF4SQ=",
    binaries={"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
    ldflags=("-X sigs.k8s.io/kwok/pkg/consts.Version=0.8.0",),
)

TRAINING_OPERATOR = Program(
    name="training-operator",
    module="github.com/kubeflow/training-operator",
    version="1.9.3",
    checksum="h1:aaSHqskOtCY8Dn8sVd+l9p5XAczW6O0nYMPjVLAw/lc=",
    binaries={"training-operator": "github.com/kubeflow/training-operator/cmd/training-operator.v1"},
    assets="manifests",
)

PROGRAMS: tuple[Program, ...] = (ETCD, KUBERNETES, KWOK, TRAINING_OPERATOR)
"""In build order: what a bare control plane needs comes first."""

MINIMUM_GO = (1, 26)
"""The `go` line of Kubernetes 1.36 and kwok 0.8."""

MINIMUM_KUBECTL = (1, 27)
"""The first kubectl that validates strictly on the server by default (KEP-2885)."""
