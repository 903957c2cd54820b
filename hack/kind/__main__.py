"""`FLEET=kind python -m hack.fleet up|down|status|kubeconfig`, or `python -m hack.kind ...`.

NOT EXERCISED where there is no Docker. Needs docker, kind (0.27 or newer) and kubectl on PATH, and the Go toolchain
only for the training operator's manifests (MUSTER_KIND_OPERATOR=none leaves the operator out).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from hack.fleet import pki, provision, scheduler_config
from hack.fleet.build import assets_folder, ensure_built
from hack.fleet.layout import REPOSITORY, default_folder
from hack.fleet.state import FleetError
from hack.fleet.versions import TRAINING_OPERATOR
from hack.kind import configs
from hack.kind.configs import HUB, IMAGE

_READY_SECONDS = 300.0
_INOTIFY = {"max_user_watches": 524288, "max_user_instances": 512}
"""What three clusters need (kind's known issues, "too many open files")."""


class Shell:
    """Runs commands and prints them first."""

    def __call__(self, *command: str | Path, stdin: str | None = None) -> str:
        """Its output. Raises FleetError with the command's own words."""
        shown = " ".join(map(str, command))
        print(f"$ {shown}", flush=True)
        done = subprocess.run(list(map(str, command)), input=stdin, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise FleetError(f"`{shown}` failed: {done.stderr.strip()[-2000:]}")
        return done.stdout


class KindFleet:
    def __init__(self, folder: Path, members: int, workers: int) -> None:
        self.folder = folder
        self.members = [f"member{i}" for i in range(1, members + 1)]
        self._workers = workers
        self._run = Shell()

    def up(self) -> None:
        """Creates what is missing. Clusters that exist are kept; images, roles and pods are brought up to date."""
        _check_tools()
        _warn_about_inotify()
        self._run("docker", "build", "--tag", IMAGE, "--file", REPOSITORY / "hack" / "kind" / "Dockerfile", REPOSITORY)
        existing = self._run("kind", "get", "clusters").split()
        for index, cluster in enumerate([HUB, *self.members]):
            self._create(cluster, index, exists=cluster in existing)
            self._run("kind", "load", "docker-image", IMAGE, "--name", cluster)
        for member in self.members:
            self._fill_member(member)
        self._fill_hub()
        print(f"\nup; export KUBECONFIG={self.kubeconfig(HUB)}")

    def down(self) -> None:
        """Deletes exactly this fleet's clusters, and its folder."""
        _check_tools()
        for cluster in [HUB, *self.members]:
            self._run("kind", "delete", "cluster", "--name", cluster)
        shutil.rmtree(self.folder, ignore_errors=True)

    def status(self) -> None:
        _check_tools()
        for cluster in [HUB, *self.members]:
            print(self._kubectl(cluster, "get", "nodes,pods", "--all-namespaces", "-o", "wide"))

    def kubeconfig(self, cluster: str) -> Path:
        return self.folder / f"{cluster}.kubeconfig"

    def _create(self, cluster: str, index: int, *, exists: bool) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        mounted = None if cluster == HUB else self.folder / cluster
        if mounted is not None:
            pki.ensure_extender(mounted / "extender-pki")
            for source, target in (
                (scheduler_config.WITH_EXTENDER, "scheduler.yaml"),
                (scheduler_config.BREAK_GLASS, "scheduler-break-glass.yaml"),
            ):
                template = (scheduler_config.SHIPPED / source).read_text()
                (mounted / target).write_text(configs.scheduler_config(template))
        if exists:
            self._run("kind", "export", "kubeconfig", "--name", cluster, "--kubeconfig", self.kubeconfig(cluster))
            return
        document = configs.cluster_config(cluster, index, mounted, 0 if cluster == HUB else self._workers)
        # Without --wait: until the extender runs no pod is scheduled in a member, the network's among them.
        self._run(
            "kind", "create", "cluster", "--config", "-", "--kubeconfig", self.kubeconfig(cluster),
            stdin=yaml.safe_dump(document),
        )  # fmt: skip

    def _fill_member(self, member: str) -> None:
        node = configs.node_name(member)
        self._apply(member, [configs.namespace(configs.NAMESPACE)])
        self._apply(member, provision.documents(sorted((provision.CRDS / "member").glob("*.yaml"))))
        self._apply(member, self._shipped_roles("member"))
        # A static pod has no ServiceAccount: a client certificate of the cluster's own CA, as kubeadm gives out.
        path = self.folder / member / "extender.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(self._user_kubeconfig(member, pki.EXTENDER))
        pod = yaml.safe_dump(configs.extender_pod(os.getuid(), os.getgid()))
        self._run(
            "docker", "exec", "--interactive", node, "tee", "/etc/kubernetes/manifests/muster-extender.yaml", stdin=pod
        )
        self._wait(f"the extender of {member}", lambda: self._is_ready(member, f"muster-extender-{node}"))
        self._run_kubectl(member, "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=300s")
        if os.environ.get("MUSTER_KIND_OPERATOR", "real") != "none":
            ensure_built(print, [TRAINING_OPERATOR])
            overlay = assets_folder(TRAINING_OPERATOR) / "overlays" / "standalone"
            self._run_kubectl(member, "apply", "--server-side", "--force-conflicts", "--kustomize", str(overlay))

    def _fill_hub(self) -> None:
        self._run_kubectl(HUB, "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=300s")
        self._apply(HUB, [configs.namespace(name) for name in (configs.NAMESPACE, "kube-queue")])
        self._apply(HUB, provision.documents(sorted((provision.CRDS / "hub").glob("*.yaml"))))
        self._run_kubectl(HUB, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        self._apply(HUB, self._shipped_roles("hub"))
        for member in self.members:
            self._apply(HUB, configs.member_objects(member, self._user_kubeconfig(member, pki.DISPATCHER)))
        self._apply(HUB, [configs.dispatcher_deployment()])
        self._run_kubectl(
            HUB, "rollout", "status", "deployment/muster-dispatcher", "-n", configs.NAMESPACE, "--timeout=300s"
        )

    def _shipped_roles(self, side: str) -> list[provision.Document]:
        files = sorted((REPOSITORY / "manifests" / "base" / side).glob("rbac*.yaml"))
        return [provision.with_users(document) for document in provision.documents(files)]

    def _user_kubeconfig(self, member: str, user: str) -> str:
        text = self._run(
            "docker", "exec", configs.node_name(member), "kubeadm", "kubeconfig", "user", "--client-name", user
        )
        return configs.on_docker_network(text, member)

    def _kubectl(self, cluster: str, *arguments: str, stdin: str | None = None) -> str:
        return self._run("kubectl", f"--kubeconfig={self.kubeconfig(cluster)}", *arguments, stdin=stdin)

    def _run_kubectl(self, cluster: str, *arguments: str) -> None:
        print(self._kubectl(cluster, *arguments), end="", flush=True)

    def _apply(self, cluster: str, documents: Sequence[provision.Document]) -> None:
        if documents:
            listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(documents)})
            self._kubectl(cluster, "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=listed)

    def _is_ready(self, cluster: str, pod: str) -> bool:
        template = '{.status.conditions[?(@.type=="Ready")].status}'
        try:
            return self._kubectl(cluster, "get", "pod", "-n", "kube-system", pod, f"-o=jsonpath={template}") == "True"
        except FleetError:  # the kubelet has not mirrored it yet
            return False

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise FleetError(f"not within {_READY_SECONDS:g}s: {what}")
            time.sleep(2)


def _check_tools() -> None:
    missing = [tool for tool in ("docker", "kind", "kubectl") if shutil.which(tool) is None]
    if missing:
        raise FleetError(
            f"the fleet on kind needs {', '.join(missing)} on PATH. "
            "Without Docker use the local fleet: leave FLEET unset"
        )


def _warn_about_inotify() -> None:
    for name, wanted in _INOTIFY.items():
        path = Path("/proc/sys/fs/inotify") / name
        if path.exists() and int(path.read_text()) < wanted:
            print(f"warning: fs.inotify.{name} is below {wanted}; if pods crash: sysctl -w fs.inotify.{name}={wanted}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m hack.kind", description=__doc__)
    parser.add_argument("verb", choices=["up", "down", "status", "kubeconfig"])
    parser.add_argument("cluster", nargs="?", default=HUB, help="for kubeconfig: hub, member1, ...")
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2, help="nodes per member, besides the control plane")
    options = parser.parse_args(arguments)
    fleet = KindFleet(default_folder("kind"), options.members, options.workers)
    try:
        if options.verb == "kubeconfig":
            print(fleet.kubeconfig(options.cluster))
        else:
            getattr(fleet, options.verb)()
    except FleetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
