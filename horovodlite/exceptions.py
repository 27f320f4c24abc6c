"""The exceptions that horovodlite adds to Python's own."""

from __future__ import annotations

from typing import Any

__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "get_version_mismatch_message",
]


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


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818  (the name is Horovod's)
    """The set of hosts of an elastic job has changed: leave training, keep the state, come back.

    Raised by ``state.commit()`` and ``state.check_host_updates()``; handled by ``elastic.run``.

    Attributes:
        skip_sync: Whether hosts have only been removed, so that the ranks that remain still agree
            and need no sync().

    Source: Horovod's ``horovod.common.exceptions.HostsUpdatedInterrupt``.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of this job have changed")
        self.skip_sync = skip_sync

    def __reduce__(self) -> tuple[Any, ...]:
        """Keeps the attribute when the exception is sent to another process."""
        return type(self), (self.skip_sync,)


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """Returns what Horovod's HorovodVersionMismatchError says. Local.

    Source: Horovod's ``horovod.common.exceptions.get_version_mismatch_message``.
    """
    return f"{name} {version} is running, but {installed_version} was built for"


class HorovodVersionMismatchError(ImportError):
    """A framework is another version than the one that was built for. Never raised here.

    It is there for scripts that catch it: horovodlite is not built against a framework.

    Source: Horovod's ``horovod.common.exceptions.HorovodVersionMismatchError``.
    """

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version
