"""Kubeconfigs of member clusters, which come from Secrets: untrusted text that must not make us run a program,
read a file, skip TLS or talk to the machine's own metadata service.

Rules after Kueue's validateKubeconfig (pkg/controller/admissionchecks/multikueue).
"""

import msgspec

MAX_KUBECONFIG_BYTES = 256 * 1024


class ConfigRefused(ValueError):
    """A configuration that cannot be used. The message says what is wrong and what to do; it holds no secrets."""


class KubeconfigRefused(ConfigRefused):
    """A member's kubeconfig that is not accepted."""


class MemberCredentials(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """What a member's kubeconfig may contribute. PEM and token are secrets and never shown."""

    server: str
    ca_pem: str = ""
    """"": the system's certificate authorities."""
    token: str = ""
    client_cert_pem: str = ""
    client_key_pem: str = ""
    tls_server_name: str = ""
    allow_loopback: bool = False

    def __repr__(self) -> str:
        return f"MemberCredentials(server={self.server!r})"


def validate_member_kubeconfig(data: bytes, allow_loopback: bool) -> MemberCredentials:
    """The current context's server and inline credentials. Raises KubeconfigRefused."""
    raise NotImplementedError
