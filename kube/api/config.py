"""Configurations we trust, our own: kubeconfig files and the pod's service account.

The only module that imports kubernetes_asyncio, and late: the import takes half a second.
"""

import os
import re
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from kube.api.connection import Authorization, Connection
from kube.api.kubeconfig import ConfigRefused

REREAD_SECONDS = 60.0
"""How often tokens are read again from where they come; the kubelet rotates them at 80 % of their life."""
EXPIRY_SKEW_SECONDS = 300.0
"""A plugin's token is renewed that long before its expirationTimestamp."""

Source = str | Path | Mapping[str, Any] | None
"""Path, colon list of paths, or a kubeconfig document; None: $KUBECONFIG, else ~/.kube/config."""


async def kubeconfig_connection(source: Source, context: str = "") -> Connection:
    """Exec plugins, token files and certificate files work. Raises ConfigRefused with what to do."""
    server, authorization, valid_seconds, ssl_context, server_name, proxy = await _load(source, context, None)

    async def again() -> tuple[str, float | None]:
        _, fresh, valid, *_ = await _load(source, context, ssl_context)
        return fresh, valid

    return Connection(
        server,
        ssl_context=ssl_context,
        authorization=Authorization(authorization, valid_seconds, again),
        tls_server_name=server_name,
        proxy=proxy,
    )


async def _load(
    source: Source, context: str, reuse: ssl.SSLContext | None
) -> tuple[str, str, float | None, ssl.SSLContext | None, str, str]:
    """(server, Authorization value, its validity in seconds, TLS, TLS server name, proxy)."""
    from kubernetes_asyncio.client import Configuration  # noqa: PLC0415 - see above
    from kubernetes_asyncio.config import kube_config  # noqa: PLC0415

    is_document = isinstance(source, Mapping)
    default = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    where = "kubeconfig" if is_document else str(source or default)
    if not is_document and not _any_file(where):
        raise ConfigRefused(f"no kubeconfig at {where}: set KUBECONFIG or name a file that exists")
    configuration = Configuration()
    try:
        document = dict(source) if isinstance(source, Mapping) else kube_config.KubeConfigMerger(where).config
        loader = kube_config.KubeConfigLoader(document, active_context=context or None, config_base_path=None)
        await loader.load_and_set(configuration)
        tls = _ssl_context(configuration, reuse)
    except yaml.YAMLError:
        raise ConfigRefused(f"{where}: not YAML") from None
    except OSError as error:
        raise ConfigRefused(f"{where}: {error.filename or 'a file it names'}: {error.strerror or error}") from None
    except Exception as error:  # noqa: BLE001 - the loader raises whatever a malformed file leads to
        raise ConfigRefused(f"{where}: {_explain(error)}") from None
    finally:
        # The loader writes inline keys to temporary files and keeps them until exit.
        kube_config._cleanup_temp_files()  # noqa: SLF001
    value = str(configuration.api_key.get("BearerToken", ""))
    expiry: datetime | None = getattr(loader, "exec_plugin_expiry", None)
    valid_seconds: float | None = None
    if expiry is not None:
        valid_seconds = max(1.0, (expiry - datetime.now(UTC)).total_seconds() - EXPIRY_SKEW_SECONDS)
    elif value and not is_document and not hasattr(loader, "exec_plugin_expiry"):
        valid_seconds = REREAD_SECONDS
    return (
        str(configuration.host),
        value,
        valid_seconds,
        tls,
        configuration.tls_server_name or "",
        configuration.proxy or "",
    )


def _any_file(paths: str) -> bool:
    return any(Path(part).expanduser().is_file() for part in paths.split(os.pathsep) if part)


def _ssl_context(configuration: Any, reuse: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """reuse: the live context, whose client certificate is replaced for the handshakes to come."""
    if not str(configuration.host).startswith("https"):
        return None
    tls = reuse or ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if not configuration.verify_ssl:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        tls.load_cert_chain(configuration.cert_file, configuration.key_file, password=lambda: b"")
    return tls


def _explain(error: Exception) -> str:
    """What the loader found, without its text: it quotes the document, secrets included."""
    missing = re.match(r"Invalid kube-config file\. Expected (?:key|object with name) (\S+)", str(error))
    if missing:
        return f"{missing[1]} is missing: check current-context and the context, cluster and user that it names"
    if str(error).startswith("exec: process returned"):
        return f"its exec plugin failed ({str(error).partition('.')[0]}): run it by hand"
    return f"not a usable kubeconfig ({type(error).__name__})"


def in_cluster_connection(folder: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount")) -> Connection:
    """The pod's service account. Raises ConfigRefused."""
    from kubernetes_asyncio.client import Configuration  # noqa: PLC0415
    from kubernetes_asyncio.config import ConfigException  # noqa: PLC0415
    from kubernetes_asyncio.config.incluster_config import InClusterConfigLoader  # noqa: PLC0415

    def load() -> Configuration:
        configuration = Configuration()
        loader = InClusterConfigLoader(str(folder / "token"), str(folder / "ca.crt"), try_refresh_token=False)
        try:
            loader.load_and_set(configuration)
        except (ConfigException, OSError) as error:
            raise ConfigRefused(
                f"not in a pod with a service account ({error}): run in a cluster or give a kubeconfig"
            ) from error
        return configuration

    async def again() -> tuple[str, float | None]:
        return str(load().api_key["BearerToken"]).strip(), REREAD_SECONDS

    first = load()
    return Connection(
        str(first.host),
        ssl_context=ssl.create_default_context(cafile=first.ssl_ca_cert),
        authorization=Authorization(first.api_key["BearerToken"].strip(), REREAD_SECONDS, again),
    )
