"""Arguments that are refused, or deprecated, before any rank is asked. In a world of one."""

from __future__ import annotations

import copy
import pickle
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import horovodlite.torch as hvd


@pytest.fixture(autouse=True)
def world_of_one() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def test_op_and_average_together_are_refused() -> None:
    with pytest.raises(ValueError, match="The op parameter supersedes average"):
        hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)


@pytest.mark.parametrize("average", [True, False])
def test_average_alone_is_deprecated_and_works(average: bool) -> None:
    with pytest.warns(DeprecationWarning, match="replaced with `op`"):
        assert hvd.allreduce(torch.ones(1), average=average).tolist() == [1.0]


@pytest.mark.parametrize("op", [-1, 6, 99])
def test_a_number_that_is_no_reduction_is_refused(op: int) -> None:
    with pytest.raises(ValueError, match=rf"op={op} is no reduction"):
        hvd.allreduce(torch.ones(1), op=op)


@pytest.mark.parametrize(
    "call",
    [
        lambda: hvd.allreduce(torch.ones(1), process_set=1),
        lambda: hvd.allgather(torch.ones(1), process_set=1),
        lambda: hvd.alltoall(torch.ones(1), process_set=1),
        lambda: hvd.reducescatter(torch.ones(1), process_set=1),
        lambda: hvd.broadcast(torch.ones(1), 0, process_set=1),
        lambda: hvd.barrier(process_set=1),
        lambda: hvd.broadcast_object(1, process_set=1),
        lambda: hvd.allgather_object(1, process_set=1),
    ],
)
def test_what_is_no_process_set_is_refused(call: object) -> None:
    with pytest.raises(TypeError, match="must be a ProcessSet, not a int"):
        call()


def test_a_process_set_that_is_not_registered_is_refused() -> None:
    with pytest.raises(ValueError, match="does not exist, or has not been registered"):
        hvd.allreduce(torch.ones(1), process_set=hvd.ProcessSet([0]))


@pytest.mark.parametrize("value", [None, 3, [1.0], {"a": 1}])
@pytest.mark.parametrize(
    "call",
    [
        hvd.allreduce,
        hvd.allgather,
        hvd.alltoall,
        hvd.reducescatter,
        lambda value: hvd.broadcast(value, 0),
        lambda value: hvd.reduce(value, 0),
        lambda value: hvd.gather(value, 0),
        lambda value: hvd.scatter(value, 0),
    ],
)
def test_what_is_no_tensor_is_refused_by_name(call: Any, value: object) -> None:
    words = rf"expected a torch\.Tensor, not {type(value).__name__}"
    with pytest.raises(TypeError, match=words):
        call(value)


@pytest.mark.parametrize("ranks", [[0.5], ["0"], [True], 3, None])
def test_a_process_set_is_made_of_ranks(ranks: object) -> None:
    with pytest.raises(ValueError, match="list of process ranks"):
        hvd.ProcessSet(ranks)


@pytest.mark.parametrize(
    ("tensor", "error", "message"),
    [
        (torch.ones(2, dtype=torch.float8_e5m2), ValueError, "float8_e5m2 is not supported"),
        (torch.eye(2).to_sparse(), ValueError, "sparse_allreduce_async"),
        (torch.ones(2, device="meta"), NotImplementedError, "device meta"),
        ([1.0, 2.0], TypeError, "expected a torch.Tensor, not list"),
        (None, TypeError, "expected a torch.Tensor, not NoneType"),
    ],
)
@pytest.mark.parametrize("operation", ["allreduce", "allreduce_", "allgather", "broadcast"])
def test_a_tensor_that_cannot_travel_is_refused_by_name(
    operation: str, tensor: object, error: type[Exception], message: str
) -> None:
    arguments = (tensor, 0) if operation == "broadcast" else (tensor,)
    with pytest.raises(error, match=message):
        getattr(hvd, operation)(*arguments)


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_a_bool_cannot_be_added_up(op: int) -> None:
    with pytest.raises(ValueError, match=r"unnamed allreduce: .* not defined for bool; use min"):
        hvd.allreduce(torch.ones(2, dtype=torch.bool), op=op)
    with pytest.raises(ValueError, match=r"allreduce 'allreduce.mask': .* not defined for bool"):
        hvd.allreduce(torch.ones(2, dtype=torch.bool), name="mask", op=op)


def test_a_scalar_cannot_be_gathered() -> None:
    with pytest.raises(ValueError, match="unsqueeze"):
        hvd.allgather(torch.tensor(3.0))


@pytest.mark.parametrize("root", [-1, 1, 7])
def test_a_root_that_is_no_rank_is_refused(root: int) -> None:
    with pytest.raises(ValueError, match=f"invalid root rank {root}: ranks are 0 to 0"):
        hvd.broadcast(torch.ones(1), root)
    with pytest.raises(ValueError, match=r"invalid root rank"):
        hvd.broadcast_parameters({"w": torch.ones(1)}, root)


def test_a_group_of_nothing_is_nothing_and_has_no_handle() -> None:
    assert hvd.grouped_allreduce([]) == []
    assert hvd.grouped_allreduce_([]) == []
    assert hvd.grouped_allgather([]) == []
    with pytest.raises(ValueError, match="at least one tensor"):
        hvd.grouped_allreduce_async([])


def test_a_handle_is_an_integer_that_can_be_waited_for_once() -> None:
    handle = hvd.allreduce_async(torch.ones(1))
    assert isinstance(handle, int)
    assert hvd.synchronize(handle).tolist() == [1.0]
    for use in (hvd.synchronize, hvd.poll):
        with pytest.raises(ValueError, match=rf"Handle {int(handle)} was not created or has been"):
            use(handle)


@pytest.mark.parametrize("handle", [999999, -1, None, "x", [1]])
def test_a_handle_that_nobody_made_is_refused(handle: object) -> None:
    with pytest.raises(ValueError, match="was not created or has been cleared"):
        hvd.synchronize(handle)
    with pytest.raises(ValueError, match="was not created or has been cleared"):
        hvd.poll(handle)


def test_the_number_of_a_living_handle_is_as_good_as_the_handle() -> None:
    handle = hvd.allreduce_async(torch.ones(1))
    assert hvd.synchronize(int(handle)).tolist() == [1.0]


@pytest.mark.parametrize("params", [3, "abc", torch.ones(3), None])
def test_broadcast_parameters_refuses_what_is_no_collection_of_tensors(params: object) -> None:
    with pytest.raises(ValueError, match="invalid params of type"):
        hvd.broadcast_parameters(params, 0)


def test_broadcast_parameters_names_the_entry_that_is_no_tensor() -> None:
    with pytest.raises(ValueError, match="'extra' is a dict, not a tensor"):
        hvd.broadcast_parameters({"extra": {}, "w": torch.ones(1)}, 0)


@pytest.mark.parametrize("op", ["sum", 1.0, [], int])
def test_what_is_no_number_is_no_reduction(op: object) -> None:
    with pytest.raises(ValueError, match="is no reduction"):
        hvd.allreduce(torch.ones(1), op=op)


@pytest.mark.parametrize("root", [None, "0", 0.0, []])
def test_what_is_no_number_is_no_root(root: object) -> None:
    with pytest.raises(ValueError, match=r"invalid root rank .*: ranks are 0 to 0"):
        hvd.broadcast(torch.ones(1), root)


GROUPED = [
    hvd.grouped_allreduce,
    hvd.grouped_allreduce_,
    hvd.grouped_allgather,
    lambda group: hvd.synchronize(hvd.grouped_allreduce_async(group)),
    lambda group: hvd.synchronize(hvd.grouped_allreduce_async_(group)),
    lambda group: hvd.synchronize(hvd.grouped_allgather_async(group)),
]


@pytest.mark.parametrize("call", GROUPED)
def test_a_group_may_be_anything_that_gives_tensors(call: Any) -> None:
    assert len(call(torch.ones(2) for _ in range(3))) == 3


@pytest.mark.parametrize("call", GROUPED)
@pytest.mark.parametrize("group", [None, torch.ones(2, 3), torch.ones(0)])
def test_one_tensor_or_none_is_no_group(call: Any, group: Any) -> None:
    with pytest.raises(TypeError, match=r"needs a list of tensors, not a (Tensor|NoneType)"):
        call(group)


def test_a_tensor_twice_in_a_group_cannot_be_reduced_in_place() -> None:
    tensor, nothing = torch.ones(3), torch.ones(0)
    with pytest.raises(ValueError, match="tensors 0 and 2 of the group share memory"):
        hvd.grouped_allreduce_([tensor, nothing, tensor, nothing])
    assert len(hvd.grouped_allreduce([tensor, tensor])) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_parts_of_a_block_are_a_group_unless_they_overlap(dtype: torch.dtype) -> None:
    """Complex tensors go another way than ordinary ones."""
    block = torch.arange(12).to(dtype)
    parts = [block[8:], block[:4], block[4:8]]
    whole = block.clone()
    hvd.grouped_allreduce_(parts, op=hvd.Sum)
    assert torch.equal(block, whole)
    with pytest.raises(ValueError, match="tensors 0 and 2 of the group share memory"):
        hvd.grouped_allreduce_([block[3:], torch.ones(2, dtype=dtype), block[:4]], op=hvd.Sum)
    columns = block.view(6, 2)
    hvd.grouped_allreduce_([columns[:, 0], columns[:, 1]], op=hvd.Sum)
    assert torch.equal(block, whole)


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda h: pickle.loads(pickle.dumps(h))]
)
def test_a_handle_outlives_its_copies(duplicate: Any) -> None:
    handle = hvd.allreduce_async(torch.ones(1))
    assert duplicate(handle) == handle
    assert hvd.synchronize(handle).tolist() == [1.0]


ODD_NAME = "file \udcff"


@pytest.mark.parametrize(
    "call",
    [
        lambda: hvd.allreduce(torch.ones(1), name=ODD_NAME),
        lambda: hvd.allreduce_async_(torch.ones(1), name=ODD_NAME),
        lambda: hvd.grouped_allreduce([torch.ones(1)], name=ODD_NAME),
        lambda: hvd.allgather(torch.ones(1), name=ODD_NAME),
        lambda: hvd.broadcast(torch.ones(1), 0, name=ODD_NAME),
        lambda: hvd.alltoall(torch.ones(1), name=ODD_NAME),
        lambda: hvd.reducescatter(torch.ones(1), name=ODD_NAME),
        lambda: hvd.broadcast_object(1, name=ODD_NAME),
        lambda: hvd.DistributedOptimizer(
            torch.optim.SGD([weight := torch.nn.Parameter(torch.ones(1))], lr=0.1),
            [(ODD_NAME, weight)],
        ),
    ],
)
def test_a_name_that_cannot_be_sent_is_refused_by_name(call: Any) -> None:
    with pytest.raises(ValueError, match=r"'.*file \\udcff.*' has a lone surrogate.*: use valid"):
        call()


def test_names_may_have_any_valid_character() -> None:
    assert hvd.allreduce(torch.ones(1), name="größe/模型 🚀").tolist() == [1.0]


def test_a_file_whose_name_is_not_utf8_can_submit_unnamed_operations(tmp_path: Path) -> None:
    file = tmp_path / "train\udcff.py"
    file.write_text("import torch, horovodlite.torch as hvd\nr = hvd.allreduce(torch.ones(1))\n")
    assert runpy.run_path(str(file))["r"].tolist() == [1.0]


@pytest.mark.parametrize(
    "call",
    [
        lambda: hvd.allreduce(torch.ones(1), prescale_factor="2"),
        lambda: hvd.allreduce_async_(torch.ones(1), prescale_factor=None),
        lambda: hvd.grouped_allreduce([torch.ones(1)], prescale_factor=[1.0]),
        lambda: hvd.reducescatter(torch.ones(1), prescale_factor=b"1"),
        lambda: hvd.reduce(torch.ones(1), 0, prescale_factor=torch.ones(2)),
    ],
)
def test_a_factor_that_is_no_number_is_refused_by_name(call: Any) -> None:
    with pytest.raises(TypeError, match="prescale_factor must be a number, not"):
        call()


def test_a_factor_may_be_any_kind_of_number() -> None:
    for factor in (2, torch.tensor(2.0), torch.tensor([2]).numpy()[0]):
        assert hvd.allreduce(torch.ones(1), prescale_factor=factor).tolist() == [2.0]


def test_a_weight_that_is_no_number_is_refused_by_name() -> None:
    optimizer = hvd.DistributedOptimizer(new_optimizer())
    calls = lambda: hvd.allreduce(torch.ones(1), weight="5"), lambda: optimizer.set_weight("a")
    for call in calls:
        with pytest.raises(TypeError, match="weight must be a number, not"):
            call()


@pytest.mark.parametrize("compression", [None, "fp16", hvd.Compression, torch.float16])
@pytest.mark.parametrize(
    "call",
    [
        lambda how: hvd.allreduce(torch.ones(1), compression=how),
        lambda how: hvd.grouped_allreduce([torch.ones(1)], compression=how),
        lambda how: hvd.reducescatter(torch.ones(1), compression=how),
        lambda how: hvd.grouped_reducescatter([torch.ones(1)], compression=how),
        lambda how: hvd.DistributedOptimizer(new_optimizer(), compression=how),
    ],
)
def test_what_cannot_compress_is_refused_at_once(call: Any, compression: object) -> None:
    with pytest.raises(TypeError, match=r"compression=.* use hvd\.Compression\.none, fp16 or bf16"):
        call(compression)


def new_optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("option", "value", "error", "message"),
    [
        ("gradient_predivide_factor", "2", TypeError, "gradient_predivide_factor must be a number"),
        ("gradient_predivide_factor", float("inf"), ValueError, "> 0 and finite, not inf"),
        ("named_parameters", 5, ValueError, "named_parameters should be a sequence of tuples"),
        ("named_parameters", torch.nn.Linear(2, 1), ValueError, "usually produced by"),
    ],
)
def test_an_option_of_the_optimizer_is_refused_by_name(
    option: str, value: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        hvd.DistributedOptimizer(new_optimizer(), **{option: value})


@pytest.mark.parametrize("thing", [None, {}, torch.nn.Linear(2, 1)])
def test_only_an_optimizer_has_optimizer_state(thing: Any) -> None:
    with pytest.raises(TypeError, match=f"needs an optimizer, not a {type(thing).__name__}"):
        hvd.broadcast_optimizer_state(thing, 0)


def test_broadcast_parameters_takes_names_of_any_kind_and_pairs_only() -> None:
    hvd.broadcast_parameters({1: torch.ones(1), "b": torch.ones(1)}, 0)
    with pytest.raises(ValueError, match=r"takes pairs \(name, tensor\), not \('a',\)"):
        hvd.broadcast_parameters([("a",)], 0)
    with pytest.raises(ValueError, match=r"pass model\.state_dict\(\)"):
        hvd.broadcast_parameters(torch.nn.Linear(2, 1), 0)


@pytest.mark.parametrize("thing", [None, 3, [0]])
def test_only_a_process_set_can_be_removed(thing: Any) -> None:
    with pytest.raises(TypeError, match=f"a ProcessSet, not a {type(thing).__name__}"):
        hvd.remove_process_set(thing)


@pytest.mark.parametrize("sets", [5, hvd.ProcessSet([0]), "x", [[0]]])
def test_init_refuses_what_is_no_list_of_process_sets(sets: Any) -> None:
    with pytest.raises(ValueError, match=r"init\(process_sets=...\) takes a list of ProcessSet"):
        hvd.init(process_sets=sets)


@pytest.mark.parametrize("path", [None, 3, b"x"])
def test_a_timeline_needs_a_path(path: Any) -> None:
    with pytest.raises(TypeError, match="file_path must be the path of a file, not"):
        hvd.start_timeline(path)


def test_a_timeline_takes_any_kind_of_path(tmp_path: Path) -> None:
    hvd.start_timeline(tmp_path / "timeline.json")
    hvd.stop_timeline()
    assert (tmp_path / "timeline.json").stat().st_size > 0


@pytest.mark.parametrize("member", [None, "abc", [torch.ones(1)]])
@pytest.mark.parametrize("operation", ["allreduce", "allgather", "reducescatter"])
def test_a_member_of_a_group_that_is_no_tensor_is_refused(operation: str, member: object) -> None:
    for suffix in ("", "_async"):
        with pytest.raises(TypeError, match=r"expected a torch\.Tensor, not"):
            getattr(hvd, f"grouped_{operation}{suffix}")([torch.ones(1), member])


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("operation", ["allreduce", "allreduce_", "allgather", "reducescatter"])
def test_nested_tensors_are_refused_with_a_cure(operation: str, layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
    with pytest.raises(ValueError, match="Nested tensors are not supported: pass"):
        getattr(hvd, operation)(nested)


@pytest.mark.parametrize(
    "call",
    [
        hvd.allreduce_,
        hvd.allreduce_async_,
        lambda tensor: hvd.grouped_allreduce_([torch.ones(1), tensor]),
        lambda tensor: hvd.broadcast_(tensor, 0),
        lambda tensor: hvd.broadcast_async_(tensor, 0),
    ],
)
def test_elements_that_share_memory_cannot_be_changed_in_place(call: Any) -> None:
    with pytest.raises(ValueError, match=r"shape \(4,\) whose elements share memory.* pass tensor"):
        call(torch.ones(1).expand(4))
    call(torch.ones(1, 0).expand(4, 0))


@pytest.mark.parametrize("batch", [torch.ones(2, 3, dtype=torch.int64), None, [[1.0]]])
@pytest.mark.parametrize("training", [True, False])
def test_sync_batch_norm_takes_floating_point_tensors(batch: Any, training: bool) -> None:
    with pytest.raises(TypeError, match="expected a floating-point tensor"):
        hvd.SyncBatchNorm(3).train(training)(batch)
