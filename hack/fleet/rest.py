"""A small blocking client for one API server: readiness probes, node objects, what a test sets up.

muster's own client (kube/api) is asynchronous and under test; the fleet must not depend on it.
"""

import base64
import functools
import http.client
import json
import ssl
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

Json = dict[str, Any]


class RestError(Exception):
    """An answer of 300 or more. `status` is the HTTP code."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        super().__init__(f"{method} {path}: {status} {body[:300]}")
        self.status = status
        self.body = body


class Rest:
    """JSON over one kept-alive connection; not for use by several threads at once."""

    def __init__(self, kubeconfig: Path, timeout: float = 10.0) -> None:
        host, port, context = _access(kubeconfig, kubeconfig.stat().st_mtime_ns)
        self._connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)

    def request(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Json:
        """The decoded answer ({"text": ...} when it is not JSON). Raises RestError, or OSError without an answer."""
        payload = None if body is None else json.dumps(body)
        headers = {"Accept": "application/json", "Content-Type": content_type}
        try:
            self._connection.request(method, path, body=payload, headers=headers)
            response = self._connection.getresponse()
            text = response.read().decode()
        except http.client.HTTPException as error:
            self._connection.close()
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        except OSError:
            self._connection.close()
            raise
        if response.status >= 300:
            raise RestError(method, path, response.status, text)
        try:
            answer = json.loads(text)
        except ValueError:
            return {"text": text}
        return answer if isinstance(answer, dict) else {"items": answer}

    def get(self, path: str) -> Json:
        return self.request("GET", path)

    def post(self, path: str, body: Json) -> Json:
        return self.request("POST", path, body)

    def put(self, path: str, body: Json) -> Json:
        return self.request("PUT", path, body)

    def merge_patch(self, path: str, body: Json) -> Json:
        return self.request("PATCH", path, body, "application/merge-patch+json")

    def delete(self, path: str, *, grace_seconds: int | None = None, missing_ok: bool = True) -> None:
        options: Json = {"propagationPolicy": "Background"}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            self.request("DELETE", path, options)
        except RestError as error:
            if error.status != 404 or not missing_ok:
                raise

    def close(self) -> None:
        self._connection.close()


@functools.lru_cache(maxsize=64)
def _access(kubeconfig: Path, _written: int) -> tuple[str, int | None, ssl.SSLContext]:
    """Host, port and TLS of a kubeconfig; kept, because reading one costs more than a request."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    address = urlsplit(cluster["server"])
    context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    with tempfile.NamedTemporaryFile() as pair:  # ssl reads a client certificate from a file only
        pair.write(base64.b64decode(user["client-certificate-data"]))
        pair.write(base64.b64decode(user["client-key-data"]))
        pair.flush()
        context.load_cert_chain(pair.name)
    return address.hostname or "", address.port, context
