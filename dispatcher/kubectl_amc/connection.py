"""The hub as kubectl would reach it: kubeconfig files merged, then the flags of the command line on top.

Rules of the merge: client-go tools/clientcmd/loader.go (the first file that names a thing wins, relative paths are
relative to the file they stand in) and overrides.go.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from dispatcher.kubectl_amc.errors import AmcError
from dispatcher.kubectl_amc.options import ConnectionOptions

Document = dict[str, Any]

_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_CREDENTIALS = ("client-certificate", "client-certificate-data", "client-key", "client-key-data", "token", "tokenFile")
_NAMED = {"clusters": "cluster", "users": "user", "contexts": "context"}
_CHOSEN = "kubectl-amc"
"""Name of the one cluster, user and context of the effective document."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Hub:
    """The effective kubeconfig document (one context), and what it says. Not a struct: a repr would show secrets."""

    def __init__(self, document: Document) -> None:
        self.document = document

    @property
    def namespace(self) -> str:
        return str(self.document["contexts"][0]["context"].get("namespace") or "default")

    @property
    def server(self) -> str:
        return str(self.document["clusters"][0]["cluster"]["server"])

    @property
    def is_local(self) -> bool:
        """Loopback. Only then may the members' kubeconfigs name loopback too (a local fleet): elsewhere such an
        address would be the user's own machine, not the member."""
        return (urlsplit(self.server).hostname or "") in _LOOPBACK

    def __repr__(self) -> str:
        return f"Hub({self.server!r})"


def kubeconfig_files(options: ConnectionOptions, environment: Mapping[str, str], home: Path) -> list[Path]:
    """Files in the order in which they win. A file of --kubeconfig has to exist, the others may be missing."""
    if options.kubeconfig:
        return [Path(options.kubeconfig)]
    listed = environment.get("KUBECONFIG", "")
    return [Path(part) for part in listed.split(":") if part] if listed else [home / ".kube" / "config"]


def load_hub(options: ConnectionOptions, environment: Mapping[str, str], home: Path) -> Hub:
    """Raises AmcError."""
    documents = []
    for path in kubeconfig_files(options, environment, home):
        try:
            documents.append(absolute(yaml.safe_load(path.read_text()) or {}, path.parent.resolve()))
        except FileNotFoundError as error:
            if options.kubeconfig:
                raise AmcError(f"kubeconfig {path}: no such file") from error
        except (OSError, UnicodeDecodeError) as error:
            raise AmcError(f"kubeconfig {path}: {getattr(error, 'strerror', '') or 'not text'}") from error
        except (yaml.YAMLError, TypeError, AttributeError, KeyError) as error:
            raise AmcError(f"kubeconfig {path}: not a kubeconfig") from error
    return Hub(effective(merged(documents), options))


def absolute(document: Document, folder: Path) -> Document:
    """The document with its relative paths made absolute (changed in place)."""
    for kind, inner in _NAMED.items():
        for entry in document.get(kind) or []:
            settings = entry.get(inner) or {}
            for key in _PATHS:
                if settings.get(key):
                    settings[key] = str(folder / settings[key])
            command = (settings.get("exec") or {}).get("command", "")
            if "/" in command:
                settings["exec"]["command"] = str(folder / command)
    return document


def merged(documents: list[Document]) -> Document:
    """One document of several; the first that names a cluster, user, context or current context wins."""
    result: Document = {"current-context": ""}
    for kind in _NAMED:
        entries: dict[str, Document] = {}
        for document in documents:
            for entry in document.get(kind) or []:
                entries.setdefault(entry["name"], entry)
        result[kind] = list(entries.values())
    for document in documents:
        result["current-context"] = result["current-context"] or document.get("current-context") or ""
    return result


def effective(document: Document, options: ConnectionOptions) -> Document:
    """The one context that the flags choose, with the flags' values in it. Raises AmcError."""
    name = options.context or document["current-context"]
    context = dict(_entry(document, "contexts", name)) if name else {}
    if options.cluster:
        context["cluster"] = options.cluster
    if options.user:
        context["user"] = options.user
    if options.namespace:
        context["namespace"] = options.namespace
    cluster = dict(_entry(document, "clusters", context["cluster"])) if context.get("cluster") else {}
    user = dict(_entry(document, "users", context["user"])) if context.get("user") else {}
    if options.server:
        cluster["server"] = options.server
    if not cluster.get("server"):
        raise AmcError("no hub is named: set a current context in the kubeconfig, or give --context or --server")
    if options.insecure_skip_tls_verify:
        cluster["insecure-skip-tls-verify"] = True
        cluster.pop("certificate-authority", None)
        cluster.pop("certificate-authority-data", None)
    if options.certificate_authority:
        cluster["certificate-authority"] = str(Path(options.certificate_authority).resolve())
        cluster.pop("certificate-authority-data", None)
    if options.tls_server_name:
        cluster["tls-server-name"] = options.tls_server_name
    if options.token:
        user = {key: value for key, value in user.items() if key not in (*_CREDENTIALS, "exec", "auth-provider")}
        user["token"] = options.token
    for key, value in (("client-certificate", options.client_certificate), ("client-key", options.client_key)):
        if value:
            user[key] = str(Path(value).resolve())
            user.pop(f"{key}-data", None)
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": _CHOSEN,
        "clusters": [{"name": _CHOSEN, "cluster": cluster}],
        "users": [{"name": _CHOSEN, "user": user}],
        "contexts": [{"name": _CHOSEN, "context": {**context, "cluster": _CHOSEN, "user": _CHOSEN}}],
    }


def impersonation(options: ConnectionOptions, document: Document) -> list[tuple[str, str]]:
    """Headers of --as and --as-group, or of the kubeconfig user's as and as-groups."""
    user = document["users"][0]["user"]
    name = options.impersonate_user or user.get("as", "")
    groups = options.impersonate_groups or tuple(user.get("as-groups") or ())
    if groups and not name:
        raise AmcError("--as-group needs --as")
    return [("Impersonate-User", name)] * bool(name) + [("Impersonate-Group", group) for group in groups]


def _entry(document: Document, kind: str, name: str) -> Document:
    for entry in document[kind]:
        if entry["name"] == name:
            return entry.get(_NAMED[kind]) or {}
    raise AmcError(f"the kubeconfig has no {_NAMED[kind]} {name!r}")
