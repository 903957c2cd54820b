"""The table of a fleet's processes: how each is started, when it is ready, what it waits for.

`python -m hack.fleet` and the tests name them as here: `hub/etcd`, `member1/extender`, `proxy`.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hack.fleet import pki, probes, scheduler_config, training_operator
from hack.fleet.layout import MUSTER_NAMESPACE, PROXY, REPOSITORY, Cluster
from hack.fleet.pairs import CLUSTERS_OWN, SECOND, Pair, pairs
from hack.fleet.probes import Probe
from hack.fleet.spec import HUB, FleetSpec, MemberSpec
from hack.fleet.state import State

_ALWAYS_ALLOW = "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics"
_CONTROLLERS = (
    "namespace-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "garbage-collector-controller",
    "root-ca-certificate-publisher-controller",
    "resourcequota-controller",
)
"""No node-lifecycle and no pod garbage collection: nodes and their pods live as the tests say."""


@dataclass(frozen=True, slots=True)
class Component:
    name: str
    argv: list[str]
    ready: Probe
    after: tuple[str, ...] = ()
    """Components, and steps of provisioning (`member1:objects`), that come first."""
    environment: Mapping[str, str] = field(default_factory=dict)
    after_start: Callable[[], None] | None = None
    """What the program needs from outside before it can become ready."""
    kept: bool = False
    """Started again whenever it exits by itself, as a kubelet would."""
    timeout: float = 120.0
    """Seconds to become ready; generous, for two busy cores."""


_KEEP = """quick=0
while [ $quick -lt 10 ]; do
    began=$(date +%s)
    "$@"
    echo "--- exited with code $?"
    if [ $(($(date +%s) - began)) -gt 3 ]; then quick=0; else quick=$((quick + 1)); fi
    sleep 0.5
done
echo "--- ten times at once: given up"
exit 1"""
"""Starts a program again whenever it exits, unless it does nothing else. A signal to the process group ends, stops or
kills this loop together with the program in it."""


def command(component: Component) -> list[str]:
    """What is really run."""
    return ["/bin/sh", "-c", _KEEP, "keep", *component.argv] if component.kept else component.argv


def table(folder: Path, state: State, binaries: Mapping[str, Path]) -> dict[str, Component]:
    """Every component that the fleet's spec asks for, by name, in no particular order."""
    spec = state.spec
    found: list[Component] = [] if spec.direct else [_proxy(folder, state)]
    for name in spec.clusters:
        found += _control_plane(Cluster(name, folder, state), binaries, spec)
    for member in spec.members:
        found += _member(Cluster(member.name, folder, state), member, binaries, spec)
    if "dispatcher" not in spec.without:
        found.append(_dispatcher(Cluster(HUB, folder, state), spec))
    return {component.name: component for component in found}


def _via_proxy(spec: FleetSpec) -> tuple[str, ...]:
    return () if spec.direct else (PROXY,)


def _proxy(folder: Path, state: State) -> Component:
    return Component(
        name=PROXY,
        argv=[sys.executable, "-m", "hack.fleet.proxy", str(folder / "proxy.json")],
        ready=probes.tcp(state.port("proxy control")),
        environment=_python(),
    )


def _control_plane(cluster: Cluster, binaries: Mapping[str, Path], spec: FleetSpec) -> list[Component]:
    client, peer = (f"http://127.0.0.1:{cluster.port(p)}" for p in ("etcd", "etcd peer"))
    etcd = Component(
        name=f"{cluster.name}/etcd",
        argv=[
            str(binaries["etcd"]),
            f"--data-dir={cluster.folder / cluster.name / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--quota-backend-bytes=8589934592",
            "--log-level=error",
        ],
        ready=probes.http_ok(f"{client}/health"),
    )
    audit = [
        f"--audit-policy-file={cluster.config / 'audit-policy.yaml'}",
        f"--audit-log-path={cluster.audit_log}",
        "--audit-log-maxsize=2000",  # MB; never rotated within a test run
    ]
    api_server = Component(
        name=f"{cluster.name}/kube-apiserver",
        argv=[
            str(binaries["kube-apiserver"]),
            f"--etcd-servers={client}",
            "--bind-address=127.0.0.1",
            f"--secure-port={cluster.port('kube-apiserver')}",
            # With a loopback bind and no default route the server refuses to start without it.
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--tls-cert-file={cluster.pki / 'apiserver.crt'}",
            f"--tls-private-key-file={cluster.pki / 'apiserver.key'}",
            f"--client-ca-file={cluster.pki / 'ca.crt'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={cluster.pki / 'service-account.crt'}",
            f"--service-account-signing-key-file={cluster.pki / 'service-account.key'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--allow-privileged=true",
            # It taints each new node not-ready:NoSchedule, which only a node-lifecycle controller takes away.
            "--disable-admission-plugins=TaintNodesByCondition",
            "--enable-priority-and-fairness=false",
            "--max-requests-inflight=0",
            "--max-mutating-requests-inflight=0",
            "--profiling=false",
            "--v=0",
            *(audit if spec.audit else []),
        ],
        ready=probes.api_server(cluster.kubeconfig(pki.ADMIN)),
        after=(etcd.name,),
        environment=_go_on_few_cores(),
    )
    controller_manager = Component(
        name=f"{cluster.name}/kube-controller-manager",
        argv=[
            str(binaries["kube-controller-manager"]),
            f"--kubeconfig={cluster.kubeconfig(pki.CONTROLLER_MANAGER)}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={cluster.port('kube-controller-manager')}",
            _ALWAYS_ALLOW,
            f"--root-ca-file={cluster.pki / 'ca.crt'}",
            f"--service-account-private-key-file={cluster.pki / 'service-account.key'}",
            # Each controller under its own name, as in a real cluster: bootstrap RBAC knows only those.
            "--use-service-account-credentials=true",
            "--kube-api-qps=5000",
            "--kube-api-burst=10000",
            f"--controllers={','.join(_CONTROLLERS)}",
        ],
        ready=probes.both(
            probes.https_ok(f"https://127.0.0.1:{cluster.port('kube-controller-manager')}/healthz"),
            probes.found(cluster.kubeconfig(pki.ADMIN), "/api/v1/namespaces/default/serviceaccounts/default"),
        ),
        # After the CRDs: the garbage collector looks for new kinds only every 30 s.
        after=(f"{cluster.name}:objects",),
    )
    return [etcd, api_server, controller_manager]


def _member(cluster: Cluster, member: MemberSpec, binaries: Mapping[str, Path], spec: FleetSpec) -> list[Component]:
    with_extender = "extender" not in spec.without
    both = pairs(member)
    found = [
        _scheduler(cluster, pair.scheduler, binaries, spec, with_extender=with_extender, host=pair.host)
        for pair in both
    ]
    if member.mode == "managed":
        found.insert(0, _scheduler(cluster, CLUSTERS_OWN, binaries, spec, with_extender=False))
    found.append(
        Component(
            name=f"{cluster.name}/kwok",
            argv=[
                str(binaries["kwok"]),
                f"--kubeconfig={cluster.kubeconfig(pki.KWOK)}",
                f"--config={cluster.config / 'stages.yaml'}",
                "--manage-all-nodes=true",
                "--cidr=10.244.0.1/16",
                "--node-ip=127.0.0.1",
                "--node-lease-duration-seconds=0",
                f"--server-address=127.0.0.1:{cluster.port('kwok')}",
            ],
            ready=probes.http_ok(f"http://127.0.0.1:{cluster.port('kwok')}/readyz"),
            after=(f"{cluster.name}:objects",),
        )
    )
    if with_extender:
        found += [_extender(cluster, pair, both, spec) for pair in both]
    if member.operator != "none" and "operator" not in spec.without:
        found.append(_operator(cluster, member, binaries, spec))
    return found


def _scheduler(
    cluster: Cluster, name: str, binaries: Mapping[str, Path], spec: FleetSpec, *, with_extender: bool, host: str = ""
) -> Component:
    program = [
        str(binaries["kube-scheduler"]),
        f"--config={scheduler_config.path_of(cluster, name, with_extender=with_extender)}",
        "--bind-address=127.0.0.1",
        f"--secure-port={cluster.port(name)}",
        _ALWAYS_ALLOW,
    ]
    return Component(
        name=f"{cluster.name}/{name}",
        argv=[sys.executable, "-m", "hack.fleet.named_host", host, *program] if host else program,
        ready=probes.https_ok(f"https://127.0.0.1:{cluster.port(name)}/readyz"),
        after=(f"{cluster.name}:objects", *_via_proxy(spec)),
        environment=_python() if host else {},
        kept=True,  # it exits whenever it loses its Lease
    )


def _extender(cluster: Cluster, pair: Pair, both: tuple[Pair, ...], spec: FleetSpec) -> Component:
    def answers(path: str, extender: str = pair.extender) -> Probe:
        return probes.http_ok(f"http://127.0.0.1:{cluster.port(f'{extender} metrics')}{path}")

    beside = []
    if pair.kind == SECOND:
        beside += [f"--scheduler-lease={MUSTER_NAMESPACE}/{SECOND}", "--shared-nodes=true"]
    if pair.host:
        beside.append(f"--scheduler-identity={pair.host}_")
    return Component(
        name=f"{cluster.name}/{pair.extender}",
        argv=[
            sys.executable,
            "-m",
            "extender",
            f"--kubeconfig={cluster.kubeconfig(f'{pki.EXTENDER}{pair.end}')}",
            f"--listen=127.0.0.1:{cluster.port(pair.extender)}",
            f"--tls-cert={cluster.extender_pki / 'server.crt'}",
            f"--tls-key={cluster.extender_pki / 'server.key'}",
            f"--client-ca={cluster.extender_pki / 'ca.crt'}",
            f"--metrics-listen=127.0.0.1:{cluster.port(f'{pair.extender} metrics')}",
            *beside,
        ],
        # Of two, only the one beside the leading scheduler is ever ready.
        ready=answers("/readyz")
        if len(both) == 1
        else probes.both(answers("/healthz"), probes.either(*(answers("/readyz", each.extender) for each in both))),
        after=(f"{cluster.name}:objects", *_via_proxy(spec)),
        environment=_python(),
    )


def _dispatcher(cluster: Cluster, spec: FleetSpec) -> Component:
    metrics = cluster.port("dispatcher metrics")
    return Component(
        name=f"{HUB}/dispatcher",
        argv=[
            sys.executable,
            "-m",
            "dispatcher",
            f"--kubeconfig={cluster.kubeconfig(pki.DISPATCHER)}",
            f"--metrics-listen=127.0.0.1:{metrics}",
            "--allow-loopback-members",
            # A killed dispatcher's successor waits out the Lease; tests kill it often.
            "--lease-seconds=8",
            "--lease-margin-seconds=3",
            "--lease-retry-seconds=1",
        ],
        ready=probes.http_ok(f"http://127.0.0.1:{metrics}/readyz"),
        after=(f"{HUB}:members", *_via_proxy(spec)),
        environment=_python(),
    )


def _operator(cluster: Cluster, member: MemberSpec, binaries: Mapping[str, Path], spec: FleetSpec) -> Component:
    kubeconfig = cluster.kubeconfig(pki.OPERATOR)
    after = (f"{cluster.name}:objects", *_via_proxy(spec))
    if member.operator == "standin":
        health = cluster.port("operator health")
        return Component(
            name=f"{cluster.name}/operator",
            argv=[
                sys.executable,
                "-m",
                "hack.operator",
                f"--kubeconfig={kubeconfig}",
                f"--dialect={member.dialect}",
                f"--health-listen=127.0.0.1:{health}",
                *member.operator_options,
            ],
            ready=probes.http_ok(f"http://127.0.0.1:{health}/readyz"),
            after=after,
            environment=_python(),
        )
    metrics, health, webhook = (cluster.port(f"operator {p}") for p in ("metrics", "health", "webhook"))
    return Component(
        name=f"{cluster.name}/operator",
        argv=[
            str(binaries["training-operator"]),
            "--enable-scheme=pytorchjob",
            f"--metrics-bind-address=127.0.0.1:{metrics}",
            f"--health-probe-bind-address=127.0.0.1:{health}",
            f"--webhook-server-port={webhook}",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            *member.operator_options,
        ],
        ready=probes.http_ok(f"http://127.0.0.1:{health}/readyz"),
        after=(f"{cluster.name}:training-operator", *after),
        environment={"KUBECONFIG": str(kubeconfig), "TMPDIR": str(cluster.operator_temp)},
        after_start=lambda: training_operator.mount_certificate(cluster),
    )


def _python() -> dict[str, str]:
    return {"PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"}


def _go_on_few_cores() -> dict[str, str]:
    # More threads only take turns on few cores; GOGC trades memory, of which there is enough, for collections.
    return {"GOGC": "200"} | ({"GOMAXPROCS": "1"} if (os.cpu_count() or 1) <= 4 else {})
