"""Which methods this version of torch has and calls: the backend must define them all."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from horovodlite.torch.c10d import ProcessGroup
from horovodlite.torch.c10d._work import Work

# Methods of torch's class that are right for every backend as they are.
INHERITED = {
    "_backend_id": "only for groups of several backends",
    "_enable_collectives_timing": "a feature of NCCL's group",
    "_id": "an id of the object",
    "_register_backend": "only for groups of several backends",
    "_register_on_completion_hook": "hooks are not supported",
    "_set_default_backend": "only for groups of several backends",
    "_wait_for_pending_works": "only where there are hooks",
    "boxed": "wraps the object",
    "merge_remote_group": "raises that it is not supported",
    "split_group": "raises that it is not supported; new_group() makes groups",
    "unbox": "wraps the object",
    "use_pg_for_symm_mem_rendezvous": "symmetric memory is on GPUs",
}
INHERITED_WORK = {
    "_get_duration": "timing is not recorded",
    "_get_op_type": "unknown, as for all works that are written in Python",
    "block_current_stream": "there are no streams on CPUs",
    "boxed": "wraps the object",
    "get_future_result": "a feature of NCCL's work",
    "unbox": "wraps the object",
}


def _ours(made: type) -> set[str]:
    """What a class and its bases of this package define."""
    return {
        name
        for base in made.__mro__
        if base.__module__.startswith("horovodlite")
        for name in vars(base)
    }


def _methods(torch_class: type) -> set[str]:
    return {
        name
        for name, member in vars(torch_class).items()
        if not name.startswith("__")
        and (callable(member) or isinstance(member, property))
        and not inspect.isclass(member)
        and name != "_pybind11_conduit_v1_"
    }


@pytest.mark.parametrize(
    ("torch_class", "ours", "inherited"),
    [(dist.ProcessGroup, ProcessGroup, INHERITED), (dist.Work, Work, INHERITED_WORK)],
)
def test_every_method_of_torch_is_defined(
    torch_class: type, ours: type, inherited: dict[str, str]
) -> None:
    missing = _methods(torch_class) - _ours(ours) - set(inherited)
    assert not missing, f"torch {torch.__version__} has methods that the backend lacks: {missing}"
    gone = set(inherited) - _methods(torch_class)
    assert not gone, f"torch {torch.__version__} no longer has {gone}"


def test_every_override_of_torchs_trampoline_is_defined() -> None:
    """C++ (the reducer of DDP, functional collectives) calls what the trampoline names."""
    header = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d/PyProcessGroup.hpp"
    text = header.read_text()
    text = text[text.index("getBackendName") :]
    names = set(re.findall(r"(?:ProcessGroup, /\* Parent class \*/\s+)(\w+)", text))
    names |= set(re.findall(r'get_override\([^"]*"(\w+)"\)', text))
    not_ours = {"splitGroup", "mergeRemoteGroup"}
    assert len(names) > 15
    assert not names - not_ours - _ours(ProcessGroup)


def test_every_method_that_torch_calls_is_there() -> None:
    """What distributed_c10d.py calls on a group, in its own source."""
    text = inspect.getsource(c10d)
    names = set(re.findall(r"\b(?:group|pg|default_pg|group_to_use|pg_to_shutdown)\.(\w+)\(", text))
    # Of dictionaries that have such names, or behind hasattr().
    names -= {"pop", "get", "setdefault", "clear", "values", "items", "new_group", "WORLD"}
    assert {"allreduce", "recv_anysource", "all_gather_single"} <= names
    assert all(hasattr(ProcessGroup, name) for name in names)


def test_groups_are_announced_where_all_ranks_come_by() -> None:
    parameters = list(inspect.signature(c10d._new_group_with_tag).parameters)
    assert parameters[:3] == ["ranks", "timeout", "backend"]
    assert "use_local_synchronization" in parameters
    assert hasattr(c10d._new_group_with_tag, "__wrapped__")
