"""What a request is told when it cannot be answered: one sentence with a code, and the status of HTTP it goes with."""

from __future__ import annotations

from typing import Any

from siglum.types import SiglumError

STATUS = {
    "bad_request": 400,
    "unauthorised": 401,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "too_slow": 408,
    "conflict": 409,
    "too_large": 413,
    "unsupported_media_type": 415,
    "invalid": 422,
    "internal": 500,
    "overloaded": 503,
    "not_ready": 503,
    "expired": 504,
}
"""Every code, and its status."""


class ServiceError(SiglumError):
    """Something a client can mend, or has to wait for."""

    def __init__(self, code: str, message: str) -> None:
        """Take one of the codes of `STATUS` and a sentence."""
        super().__init__(message)
        self.code = code

    @property
    def status(self) -> int:
        """The status of HTTP."""
        return STATUS[self.code]


def error_body(code: str, message: str) -> dict[str, Any]:
    """Return what an error looks like to a client.

    >>> error_body("conflict", "it is there already.")
    {'error': {'code': 'conflict', 'message': 'it is there already.'}}
    """
    return {"error": {"code": code, "message": message}}


def as_service_error(error: SiglumError) -> ServiceError:
    """Return an error of the library as one of the service."""
    return error if isinstance(error, ServiceError) else ServiceError("bad_request", str(error))
