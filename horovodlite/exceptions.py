"""The exceptions that horovodlite adds to Python's own."""

from __future__ import annotations

from typing import Any

__all__ = ["HorovodInternalError"]


class HorovodInternalError(RuntimeError):
    """Something went wrong between the ranks; this session cannot be relied on.

    Raised for ranks that disagree (another shape, dtype, operation), for a peer that died or left,
    for a deadline that passed, and for operations that were pending when the session ended. A
    mistake in the call itself is a ValueError instead.

    Attributes:
        code: Name of the kind of failure: "Mismatch" (ranks disagree; the session goes on),
            "Unavailable" (a peer is gone), "Timeout", "Aborted" (the session was ended by this
            process or by an earlier failure), "ResourceExhausted" or "Internal".
        culprit_rank: The rank that caused it, or None when no single rank did.

    Source: Horovod's ``horovod.common.exceptions.HorovodInternalError``.
    """

    def __init__(
        self,
        message: str = "",
        *,
        code: str = "Internal",
        culprit_rank: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.culprit_rank = culprit_rank

    def __reduce__(self) -> tuple[Any, ...]:
        """Keeps the attributes when the exception is sent to another process."""
        attributes = {"code": self.code, "culprit_rank": self.culprit_rank}
        return (type(self), self.args, attributes)
