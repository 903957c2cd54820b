"""What can go wrong between us and an API server.

ApiError
 |- Unreachable          no answer: refused, reset, timed out, TLS. Proves nothing about what happened there.
 `- StatusError          the server answered with a metav1.Status
     |- NotFound         404
     |- AlreadyExists    409, reason AlreadyExists
     |- Conflict         409, any other reason (resourceVersion, uid precondition)
     |- Gone             410: the resourceVersion is too old
     |- Forbidden        401, 403
     |- Invalid          400, 422
     `- TooManyRequests  429, and 503 with Retry-After
"""


class ApiError(Exception):
    """Base of everything an `Api` raises."""

    @property
    def uncertain(self) -> bool:
        """True: a write that got this answer may have been done all the same. Read before deciding anything."""
        return True


class Unreachable(ApiError):
    """No answer. A write may or may not have happened."""


class StatusError(ApiError):
    """An answer that is not success.

    code: HTTP status. reason: metav1.Status reason ("" if none). message: the server's text.
    retry_after: seconds or None.
    """

    def __init__(self, code: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{code} {reason}: {message}" if reason else f"{code}: {message}")
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    @property
    def uncertain(self) -> bool:
        """5xx: the request may have reached etcd ("etcdserver: request timed out", 504 of a proxy)."""
        return self.code >= 500


class NotFound(StatusError): ...


class AlreadyExists(StatusError): ...


class Conflict(StatusError): ...


class Gone(StatusError): ...


class Forbidden(StatusError): ...


class Invalid(StatusError): ...


class TooManyRequests(StatusError): ...
