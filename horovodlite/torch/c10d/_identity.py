"""What torch asks a process group about itself."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from horovodlite.torch.c10d._eager import eager

NAME = "horovodlite"
_CPU = torch.device("cpu")
_Base: Any = dist.ProcessGroup  # whose types are those of C++, with every old form of a call


@eager
class Identity(_Base):  # type: ignore[misc]
    """Rank, size, names and devices of a group.

    C++ asks in one spelling and Python in another one; both have to be there, as torch takes the
    group itself for one that it has made.
    """

    def __init__(self, rank: int, size: int, store: Any) -> None:
        super().__init__(rank, size)
        self._place = rank
        self._extent = size
        self._store = store
        self._name = ""
        self._desc = "undefined"

    def getBackendName(self) -> str:  # noqa: N802
        return NAME

    def _get_backend_name(self) -> str:
        return NAME

    def name(self) -> str:
        return NAME

    def getRank(self) -> int:  # noqa: N802
        return self._place

    def getSize(self) -> int:  # noqa: N802
        return self._extent

    def rank(self) -> int:
        return self._place

    def size(self) -> int:
        return self._extent

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    _set_group_name = setGroupName

    @property
    def group_name(self) -> str:
        return self._name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._desc

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802
        self._desc = desc

    _set_group_desc = setGroupDesc

    @property
    def group_desc(self) -> str:
        return self._desc

    @property
    def _device_types(self) -> list[torch.device]:
        return [_CPU]

    @property
    def bound_device_id(self) -> None:
        return None

    @property
    def supports_splitting(self) -> bool:
        return False

    @property
    def supports_coalescing(self) -> bool:
        return False

    @property
    def supports_time_estimate(self) -> bool:
        return False

    def _get_backend(self, device: torch.device) -> Identity:
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"No backend type associated with device type {device}")
        return self

    def get_group_store(self) -> Any:
        return self._store

    def _has_hooks(self) -> bool:
        return False

    def _set_sequence_number_for_group(self) -> None:
        pass  # names count by themselves
