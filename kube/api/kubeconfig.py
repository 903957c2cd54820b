"""Kubeconfigs of member clusters, which come from Secrets: untrusted text that must not make us run a program,
read a file, skip TLS or talk to a cloud's metadata service.

Only the server, CA data, a token and client certificate data are taken, of the current context. Rules after Kueue's
validateKubeconfig (pkg/controller/admissionchecks/multikueue).
"""

import base64
import binascii
from typing import Any
from urllib.parse import urlsplit

import msgspec
import yaml

from kube.api.addresses import address_refusal

MAX_KUBECONFIG_BYTES = 256 * 1024

_INSTEAD = "put a token, or client-certificate-data and client-key-data, into the kubeconfig"

USER_REFUSALS = {
    "exec": f"would run a program on the hub: {_INSTEAD}",
    "auth-provider": f"is a plugin on the hub: {_INSTEAD}",
    "tokenFile": f"would read a file of the hub: {_INSTEAD}",
    "client-certificate": f"would read a file of the hub: {_INSTEAD}",
    "client-key": f"would read a file of the hub: {_INSTEAD}",
    "username": f"is basic authentication, which API servers no longer have: {_INSTEAD}",
    "password": f"is basic authentication, which API servers no longer have: {_INSTEAD}",
    "as": "asks for impersonation: use credentials of the identity itself",
    "as-uid": "asks for impersonation: use credentials of the identity itself",
    "as-groups": "asks for impersonation: use credentials of the identity itself",
    "as-user-extra": "asks for impersonation: use credentials of the identity itself",
}
CLUSTER_REFUSALS = {
    "certificate-authority": "would read a file of the hub: use certificate-authority-data",
    "insecure-skip-tls-verify": "would accept any server: use certificate-authority-data",
    "proxy-url": "would send the credentials through a proxy: name an address the hub reaches directly",
}


class ConfigRefused(ValueError):
    """A configuration that cannot be used. The message says what is wrong and what to do; it holds no secrets."""


class KubeconfigRefused(ConfigRefused):
    """A member's kubeconfig that is not accepted."""


class MemberCredentials(msgspec.Struct, frozen=True, kw_only=True):
    """What a member's kubeconfig may contribute. PEM and token are secrets and never shown."""

    server: str
    """https URL, without a trailing slash."""
    ca_pem: str = ""
    """Empty: the system's certificate authorities."""
    token: str = ""
    client_cert_pem: str = ""
    client_key_pem: str = ""
    tls_server_name: str = ""
    allow_loopback: bool = False

    def __repr__(self) -> str:
        return f"MemberCredentials(server={self.server!r})"

    def __rich_repr__(self) -> Any:
        yield "server", self.server


def validate_member_kubeconfig(data: bytes, allow_loopback: bool) -> MemberCredentials:
    """The current context's server and inline credentials. Raises KubeconfigRefused.

    allow_loopback: for fleets on one machine only.
    """
    document = _document(data)
    name = _text(document, "current-context", "kubeconfig")
    if not name:
        raise KubeconfigRefused("current-context is empty: name the context to use")
    context = _named(document, "contexts", "context", name)
    where = f"context {_show(name)}"
    cluster_name, user_name = _text(context, "cluster", where), _text(context, "user", where)
    cluster = _named(document, "clusters", "cluster", cluster_name)
    user = _named(document, "users", "user", user_name)
    cluster_at, user_at = f"cluster {_show(cluster_name)}", f"user {_show(user_name)}"
    for fields, at, refusals in ((cluster, cluster_at, CLUSTER_REFUSALS), (user, user_at, USER_REFUSALS)):
        for key, why in refusals.items():
            # `insecure-skip-tls-verify: false` and empty strings say nothing.
            if fields.get(key):
                raise KubeconfigRefused(f"{at}: {key} {why}")

    token = _text(user, "token", user_at).strip()
    if not token.isascii() or any(c.isspace() or not c.isprintable() for c in token):
        raise KubeconfigRefused(f"{user_at}: token has characters that no token has: copy it anew")
    cert, key = _pem(user, "client-certificate-data", user_at), _pem(user, "client-key-data", user_at)
    if bool(cert) != bool(key):
        raise KubeconfigRefused(f"{user_at}: client-certificate-data and client-key-data belong together: give both")
    if "ENCRYPTED" in key:
        raise KubeconfigRefused(f"{user_at}: client-key-data is encrypted: give the key without a passphrase")
    if not token and not cert:
        raise KubeconfigRefused(f"{user_at}: no credentials: {_INSTEAD}")
    return MemberCredentials(
        server=_server(_text(cluster, "server", cluster_at), cluster_at, allow_loopback=allow_loopback),
        ca_pem=_pem(cluster, "certificate-authority-data", cluster_at),
        token=token,
        client_cert_pem=cert,
        client_key_pem=key,
        tls_server_name=_text(cluster, "tls-server-name", cluster_at),
        allow_loopback=allow_loopback,
    )


def _document(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_KUBECONFIG_BYTES:
        raise KubeconfigRefused(f"larger than {MAX_KUBECONFIG_BYTES // 1024} KiB: keep only the member's own context")
    try:
        document = yaml.safe_load(data)
    except (yaml.YAMLError, RecursionError, ValueError):
        # The parser's own message quotes the text around the error.
        raise KubeconfigRefused("not YAML: check the Secret's key kubeconfig") from None
    if not isinstance(document, dict):
        raise KubeconfigRefused("not a kubeconfig: expected clusters, contexts, users and current-context")
    return document


def _named(document: dict[str, Any], plural: str, singular: str, name: str) -> dict[str, Any]:
    """`document[plural]` is a list of {name, <singular>: {...}}."""
    entries = document.get(plural) or []
    if not isinstance(entries, list):
        raise KubeconfigRefused(f"{plural} is not a list")
    found = [entry for entry in entries if isinstance(entry, dict) and entry.get("name") == name]
    if not found:
        raise KubeconfigRefused(f"{singular} {_show(name)} is missing: add it to {plural} or correct its name")
    if len(found) > 1:
        raise KubeconfigRefused(f"{singular} {_show(name)} is there {len(found)} times: keep one")
    fields = found[0].get(singular) or {}
    if not isinstance(fields, dict):
        raise KubeconfigRefused(f"{singular} {_show(name)} is not a mapping")
    return fields


def _text(fields: dict[str, Any], key: str, where: str) -> str:
    value = fields.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise KubeconfigRefused(f"{where}: {key} is not a string: quote it")
    return value


def _pem(fields: dict[str, Any], key: str, where: str) -> str:
    encoded = "".join(_text(fields, key, where).split())
    if not encoded:
        return ""
    try:
        text = base64.b64decode(encoded, validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        raise KubeconfigRefused(f"{where}: {key} is not base64 of PEM") from None
    if "-----BEGIN " not in text:
        raise KubeconfigRefused(f"{where}: {key} is not base64 of PEM")
    return text


def _server(url: str, where: str, *, allow_loopback: bool) -> str:
    if not url:
        raise KubeconfigRefused(f"{where}: server is empty: give the API server's https address")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise KubeconfigRefused(f"{where}: server is not a URL: give https://host:port") from None
    if parts.scheme != "https":
        raise KubeconfigRefused(f"{where}: server is not https: credentials are sent only over TLS")
    if parts.username is not None or parts.password is not None:
        raise KubeconfigRefused(f"{where}: server holds a user name: use the user's token or certificate")
    if not host or parts.query or parts.fragment or not url.isascii() or not url.isprintable() or " " in url:
        raise KubeconfigRefused(f"{where}: server is not an address: give https://host:port")
    refusal = _host_refusal(host.rstrip("."), allow_loopback=allow_loopback)
    if refusal:
        raise KubeconfigRefused(f"{where}: server {_show(host)} is {refusal}: give an address of the member's own")
    return url.rstrip("/")


def _host_refusal(host: str, *, allow_loopback: bool) -> str:
    try:
        return address_refusal(host, allow_loopback=allow_loopback)
    except ValueError:
        pass  # a name: judged again when it is resolved
    if host.rpartition(".")[2][:1].isdigit():
        # `127.1`, `0x7f000001`, `2130706433`: resolvers take them for addresses.
        return "an address in an unusual notation"
    if (host == "localhost" or host.endswith(".localhost")) and not allow_loopback:
        return "a loopback address"
    return ""


def _show(text: str) -> str:
    """A name out of the document, short and on one line."""
    return repr(text[:80])
