"""Certificates of a fleet: one CA per cluster for its API, one for its extender, client certificates by identity.

The identities are the ones a real installation has, so that RBAC and audit logs mean what they mean there.
"""

from pathlib import Path

import trustme

ADMIN = "admin"
SCHEDULER = "kube-scheduler"
CONTROLLER_MANAGER = "kube-controller-manager"
KWOK = "kwok"
EXTENDER = "muster-extender"
DISPATCHER = "muster-dispatcher"
OPERATOR = "training-operator"

USERS: dict[str, tuple[str, str | None]] = {
    ADMIN: ("admin", "system:masters"),
    SCHEDULER: ("system:kube-scheduler", None),
    CONTROLLER_MANAGER: ("system:kube-controller-manager", None),
    KWOK: ("kwok", None),
    EXTENDER: ("muster-extender", None),
    DISPATCHER: ("muster-dispatcher", None),
    OPERATOR: ("training-operator", None),
}
"""Identity: (user name = CN, group = O). A certificate without group still carries an O that means nothing."""

EXTENDER_SERVER_NAME = "muster-extender"
"""What the extender's serving certificate is for, and tlsConfig.serverName of the scheduler."""


def ensure_cluster(folder: Path, identities: tuple[str, ...]) -> None:
    """Fills `folder` with ca.crt, apiserver.{crt,key}, service-account.{crt,key} and IDENTITY.{crt,key}.

    Keys of the CA are not kept; a complete folder is left as it is.
    """
    if (folder / "complete").exists():
        return
    ca = trustme.CA(organization_name="muster local fleet", organization_unit_name=folder.parent.name)
    _write(folder / "ca.crt", ca.cert_pem.bytes())
    server = ca.issue_cert(
        "127.0.0.1",
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "10.0.0.1",
        common_name="kube-apiserver",
    )
    _write_pair(folder, "apiserver", server)
    _write_pair(folder, "service-account", ca.issue_cert("service-account.muster.local"))
    for identity in identities:
        user, group = USERS[identity]
        # The extra name: Go refuses a certificate whose list of names is there but empty.
        _write_pair(
            folder,
            identity,
            ca.issue_cert(f"{identity}.client.muster.local", common_name=user, organization_name=group),
        )
    (folder / "complete").touch()


def ensure_extender(folder: Path) -> None:
    """Fills `folder` with ca.crt, server.{crt,key} (the extender) and client.{crt,key} (its kube-scheduler)."""
    if (folder / "complete").exists():
        return
    ca = trustme.CA(organization_name="muster local fleet", organization_unit_name="extender")
    _write(folder / "ca.crt", ca.cert_pem.bytes())
    server = ca.issue_cert(EXTENDER_SERVER_NAME, "127.0.0.1", "localhost", common_name=EXTENDER_SERVER_NAME)
    _write_pair(folder, "server", server)
    client = ca.issue_cert("kube-scheduler.client.muster.local", common_name="system:kube-scheduler")
    _write_pair(folder, "client", client)
    (folder / "complete").touch()


def _write_pair(folder: Path, name: str, leaf: trustme.LeafCert) -> None:
    _write(folder / f"{name}.crt", b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    _write(folder / f"{name}.key", leaf.private_key_pem.bytes())


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600)
    path.write_bytes(content)
