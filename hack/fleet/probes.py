"""Readiness probes: each answers with nothing when ready, else with why not."""

import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from hack.fleet.rest import Rest, RestError

Probe = Callable[[], str]
"""Empty: ready. Blocking, but for a second or two at most."""

_SECONDS = 2.0


def http_ok(url: str) -> Probe:
    return lambda: _fetch(url, None)


def https_ok(url: str, pair: tuple[Path, Path] | None = None) -> Probe:
    """Answers 200 over TLS. The certificate is not checked: a probe of our own process on loopback."""

    def probe() -> str:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without the system's authorities, which take long to read
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if pair:
            context.load_cert_chain(*pair)
        return _fetch(url, context)

    return probe


def tcp(port: int) -> Probe:
    def probe() -> str:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=_SECONDS).close()
        except OSError as error:
            return str(error)
        return ""

    return probe


def both(first: Probe, second: Probe) -> Probe:
    return lambda: first() or second()


def either(*several: Probe) -> Probe:
    def probe() -> str:
        reasons = []
        for each in several:
            if not (reason := each()):
                return ""
            reasons.append(reason)
        return "; ".join(reasons)

    return probe


def found(kubeconfig: Path, path: str) -> Probe:
    """An object is there: without its default ServiceAccount a namespace takes no pods."""

    def probe() -> str:
        rest = Rest(kubeconfig, timeout=_SECONDS)
        try:
            rest.get(path)
        except (OSError, RestError) as error:
            return str(error)
        finally:
            rest.close()
        return ""

    return probe


def api_server(kubeconfig: Path) -> Probe:
    """/readyz says 200 and the system namespaces are there (403 comes first, until RBAC is bootstrapped)."""

    def probe() -> str:
        rest = Rest(kubeconfig, timeout=_SECONDS)
        try:
            rest.get("/readyz")
            for namespace in ("default", "kube-system", "kube-node-lease"):
                rest.get(f"/api/v1/namespaces/{namespace}")
        except (OSError, RestError) as error:
            return str(error)
        finally:
            rest.close()
        return ""

    return probe


def running() -> str:
    """For programs without a readiness endpoint: started is ready."""
    return ""


def _fetch(url: str, context: ssl.SSLContext | None) -> str:
    try:
        # S310: every URL here is built by the table of components.
        with urllib.request.urlopen(url, timeout=_SECONDS, context=context) as answer:  # noqa: S310
            return "" if answer.status == 200 else f"{url}: {answer.status}"
    except urllib.error.HTTPError as error:
        return f"{url}: {error.code} {error.read(200).decode(errors='replace').strip()}"
    except OSError as error:
        return f"{url}: {error}"
