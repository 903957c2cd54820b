"""Mutual TLS towards kube-scheduler: the one authentication an extender can have (kubernetes#94106).

The serving pair is reloaded on the live context when its files change, so a rotation drops no held call. Authorities
of clients are only ever added to a live context: one that is taken away keeps its trust until the process restarts.
"""

import logging
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extender.logs import line
from kube.api.clock import Clock

log = logging.getLogger(__name__)

HTTP2, HTTP1 = "h2", "http/1.1"
"""Names of the protocols in the handshake (ALPN)."""


class TlsError(Exception):
    """Certificate files that cannot be used: the message names the file and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the serving certificate (chain) with its key, and the authorities that may sign clients."""

    cert: Path
    key: Path
    client_ca: Path

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Changes whenever a file is replaced or rewritten. Missing files count as changed, not as an error."""
        return tuple(_stamp(path) for path in (self.cert, self.key, self.client_ca))


class ServerTls:
    """A server context that demands a client certificate and follows its files.

    Raises TlsError when the files cannot be loaded at start.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._loaded = files.stamp()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.verify_mode = ssl.CERT_REQUIRED
        # kube-scheduler keeps no sessions (Go's default), and a ticket is a third of a handshake's CPU.
        self.context.num_tickets = 0
        # With HTTP/2 all held binds of kube-scheduler share one connection, and one handshake.
        self.context.set_alpn_protocols([HTTP2, HTTP1])
        _load(self.context, files)

    def reload_if_changed(self) -> bool:
        """True after new files were taken over. Broken files are logged once and the old pair goes on serving."""
        stamp = self._files.stamp()
        if stamp == self._loaded:
            return False
        self._loaded = stamp
        try:
            # A scratch context first: a live one would be left with the new certificate and the old key.
            _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._files)
            _load(self.context, self._files)
        except TlsError as problem:
            log.warning(line("tls reload failed, the old certificate goes on serving", err=problem))
            return False
        log.info(line("tls reloaded", cert=self._files.cert))
        return True

    async def follow(self, clock: Clock, every: float) -> None:
        """Looks at the files every `every` seconds, until cancelled."""
        while True:
            await clock.sleep(every)
            self.reload_if_changed()


def common_name(peer: Mapping[str, Any] | None) -> str:
    """CN of a peer certificate in the form of ssl.SSLSocket.getpeercert(); "" when there is none."""
    subject: Sequence[Sequence[tuple[str, str]]] = (peer or {}).get("subject", ())
    for attributes in subject:
        for name, value in attributes:
            if name == "commonName":
                return value
    return ""


def _load(context: ssl.SSLContext, files: TlsFiles) -> None:
    for path in (files.cert, files.key, files.client_ca):
        if not path.is_file():
            raise TlsError(f"{path}: no such file")
    try:
        # Without a password OpenSSL would ask for one on the terminal and hang.
        context.load_cert_chain(files.cert, files.key, password="")
    except (ssl.SSLError, OSError) as problem:
        raise TlsError(f"{files.cert} and {files.key} are no certificate with its key: {problem}") from problem
    try:
        context.load_verify_locations(cafile=files.client_ca)
    except (ssl.SSLError, OSError) as problem:
        raise TlsError(f"{files.client_ca} holds no usable CA certificate: {problem}") from problem


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_mtime_ns, found.st_size)
