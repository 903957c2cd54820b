"""An API server's refusal (metav1.Status) as the exception it means."""

import msgspec

from kube.api import documents
from kube.api.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    StatusError,
    TooManyRequests,
)

_BY_CODE: dict[int, type[StatusError]] = {
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}

MESSAGE_LIMIT = 2048
"""Characters kept of what a server says: it ends up in conditions and logs."""


def error_of(code: int, body: bytes, retry_after: float | None = None) -> StatusError:
    """code: HTTP status, 0 to take the Status' own (watch ERROR events). retry_after: of the header, seconds."""
    try:
        status = documents.status.decode(body)
    except msgspec.DecodeError:
        # Not from an API server: a proxy or load balancer speaks plain text or HTML.
        status = documents.Status(message=body[:MESSAGE_LIMIT].decode(errors="replace").strip())
    code = code or status.code or 500
    if retry_after is None and status.details is not None and status.details.retry_after_seconds > 0:
        retry_after = status.details.retry_after_seconds
    kind = _BY_CODE.get(code, StatusError)
    if code == 409 and status.reason == "AlreadyExists":
        kind = AlreadyExists
    if code == 503 and retry_after is not None:
        kind = TooManyRequests
    return kind(code, status.reason, _printable(status.message), retry_after)


def _printable(text: str) -> str:
    """One line without control characters: the text is another cluster's."""
    return "".join(c if c.isprintable() else " " for c in text[:MESSAGE_LIMIT])
