"""allreduce on ranks: values, types, layouts, groups, gradients, and disagreements."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import horovodlite.torch as hvd


def test_every_reduction_of_every_type_is_right_fused_and_alone(run, plane, fusion) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank, size = hvd.rank(), hvd.size()
        integers = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
        floats = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
        rows = [[(3 * r + i) % 5 + 1 for i in range(7)] for r in range(size)]
        exact = torch.tensor(rows, dtype=torch.float64)
        expected = {
            hvd.Sum: exact.sum(0),
            hvd.Average: exact.mean(0),
            hvd.Min: exact.amin(0),
            hvd.Max: exact.amax(0),
            hvd.Product: exact.prod(0),
        }
        handles = []
        for dtype in integers + floats:
            for op, real in expected.items():
                result = real.trunc() if dtype in integers else real
                name = f"{dtype}.{op}"
                tensor = torch.tensor(rows[rank], dtype=dtype)
                handles.append(
                    (name, result, tensor, hvd.allreduce_async(tensor, name=name, op=op))
                )
                again = hvd.allreduce(tensor, name=f"alone.{name}", op=op)
                assert torch.allclose(again.double(), result, rtol=2**-8), name
        for name, result, tensor, handle in handles:
            output = hvd.synchronize(handle)
            assert output.dtype == tensor.dtype
            assert torch.allclose(output.double(), result, rtol=2**-8), name
            assert tensor.tolist() == rows[rank], f"{name}: the input was changed"

    for size in (1, 2, 3):
        run(body, size=size, env={**plane, **fusion})


@pytest.mark.trial("B32")
def test_averages_of_integers_are_rounded_towards_zero_and_sums_are_exact(run) -> None:
    """One rule for all integer types, fused and alone; inputs stay as they are."""

    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        mine = [[1, 2, -3], [2, 2, -4]][hvd.rank()]
        signed = [torch.int8, torch.int16, torch.int32, torch.int64]
        inputs = [torch.tensor(mine, dtype=dtype) for dtype in signed]
        inputs.append(torch.tensor([255, 2 - hvd.rank()], dtype=torch.uint8))
        expected = [[1, 2, -3]] * len(signed) + [[255, 1]]
        handles = [hvd.allreduce_async(tensor, name=str(tensor.dtype)) for tensor in inputs]
        assert [hvd.synchronize(handle).tolist() for handle in handles] == expected
        assert [hvd.allreduce(tensor).tolist() for tensor in inputs] == expected
        assert inputs[0].tolist() == mine
        big = torch.tensor([2**53 + 1], dtype=torch.int64)
        assert hvd.allreduce(big, op=hvd.Sum).tolist() == [2**54 + 2]

    run(body)


@pytest.mark.trial("B21", "B36")
def test_narrow_floats_are_added_up_in_float32(run) -> None:
    """No overflow on the way to an average; bfloat16 keeps what float32 can hold."""

    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        big = hvd.allreduce(torch.tensor([40000.0], dtype=torch.float16))
        assert big.tolist() == [40000.0]
        part = torch.tensor([[256.0, 1.0, 1.0][hvd.rank()]], dtype=torch.bfloat16)
        assert hvd.allreduce(part, op=hvd.Sum).tolist() == [258.0]
        tiny = torch.full((3,), 1e-7, dtype=torch.float16)
        assert torch.equal(hvd.allreduce(tiny), tiny)

    run(body, size=3)


def test_scale_factors_multiply_before_and_after(run, plane, fusion) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        tensor = torch.tensor([1.0, -2.0])
        result = hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=0.5, postscale_factor=10.0)
        assert result.tolist() == [10.0, -20.0]
        result = hvd.allreduce(tensor, prescale_factor=4.0, postscale_factor=0.5)
        assert result.tolist() == [2.0, -4.0]

    run(body, env={**plane, **fusion})


@pytest.mark.trial("B33")
def test_results_do_not_depend_on_fusion_size_or_place(run) -> None:
    """Tensors around every border, in place and out of place, give the same bits."""

    def body() -> list[bytes]:
        import torch

        import horovodlite.torch as hvd

        generator = torch.Generator().manual_seed(hvd.rank())
        tensors = []
        for count in (1, 15, 16, 17, 63, 64, 65, 1000001):
            values = torch.randn(count, generator=generator)
            tensors += [values.to(d) for d in (torch.float32, torch.float64, torch.float16)]
        outputs = [t.clone() for t in tensors]
        handles = [hvd.allreduce_async(t, name=f"out.{i}") for i, t in enumerate(tensors)]
        handles += [hvd.allreduce_async_(t, name=f"in.{i}") for i, t in enumerate(outputs)]
        results = [hvd.synchronize(handle) for handle in handles]
        for out_of_place, in_place in zip(results, results[len(tensors) :]):
            assert torch.equal(out_of_place, in_place)
        return [bytes(t.untyped_storage()) if t.numel() < 100 else t.sum().item() for t in results]

    seen = []
    for threshold in ("0", "64", "134217728"):
        by_rank = run(body, size=3, env={"HVL_FUSION_THRESHOLD": threshold})
        assert by_rank[0] == by_rank[1] == by_rank[2]
        seen.append(by_rank[0])
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.trial("B38")
def test_any_strides_are_accepted_and_memory_formats_are_kept(run) -> None:
    """Layouts: channels_last, transposed, sliced, expanded, in place and out of place."""

    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        factor = hvd.rank() + 1

        def variants() -> dict[str, torch.Tensor]:
            base = torch.arange(120.0).reshape(2, 3, 4, 5) * factor
            return {
                "channels_last": base.to(memory_format=torch.channels_last),
                "transposed": base.transpose(0, 3),
                "permuted": base.permute(2, 0, 3, 1),
                "sliced": base[:, :, ::2],
                "cut": base[1, :, 1:3],
                "expanded": base[:, :1].expand(2, 3, 4, 5),
            }

        for name, tensor in variants().items():
            expected = tensor / factor * 1.5
            result = hvd.allreduce(tensor, name=name)
            assert torch.equal(result, expected), name
            if name in ("channels_last", "transposed", "permuted"):
                assert result.stride() == tensor.stride(), name
        for name in ("channels_last", "transposed", "sliced", "cut"):
            tensor = variants()[name]
            expected = tensor / factor * 1.5
            assert hvd.allreduce_(tensor, name=f"in.{name}") is tensor
            assert torch.equal(tensor, expected), name

    run(body)


def test_ranks_with_different_memory_orders_get_an_error_and_no_wrong_sums(run, plane) -> None:
    def body() -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        tensor = torch.ones(2, 3, 4, 5)
        if hvd.rank() == 1:
            tensor = tensor.to(memory_format=torch.channels_last)
        with pytest.raises(hvd.HorovodInternalError, match="mixed") as caught:
            hvd.allreduce(tensor, name="mixed")
        assert caught.value.code == "Mismatch"
        assert hvd.allreduce(torch.ones(1)).tolist() == [1.0]

    run(body, env=plane)


@pytest.mark.trial("B42")
def test_scalars_and_empty_tensors_work(run) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        scalar = hvd.allreduce(torch.tensor(3.0 + hvd.rank()))
        assert scalar.shape == ()
        assert scalar.item() == 3.5
        assert hvd.broadcast(torch.tensor(hvd.rank()), 1).item() == 1
        for shape in ((0,), (0, 5), (5, 0, 2)):
            assert hvd.allreduce(torch.ones(shape)).shape == shape
            assert hvd.broadcast(torch.ones(shape), 0).shape == shape
            assert hvd.allgather(torch.ones(shape)).shape == (2 * shape[0], *shape[1:])
        for operate in (hvd.allgather, hvd.reducescatter, hvd.alltoall):
            for shape in ((0,), (0, 5)):
                assert operate(torch.ones(shape)).shape == shape
            with pytest.raises(ValueError, match=r"scalar|dimension"):
                operate(torch.tensor(3.0))
        handles = [hvd.allreduce_async(torch.ones(i % 2)) for i in range(6)]
        assert [hvd.synchronize(handle).numel() for handle in handles] == [0, 1] * 3

    run(body)


@pytest.mark.trial("B40")
def test_bools_can_be_compared_moved_and_not_added(run) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        mine = torch.tensor([[True, True, False], [True, False, False]][hvd.rank()])
        assert hvd.allreduce(mine, op=hvd.Min).tolist() == [True, False, False]
        assert hvd.allreduce(mine, op=hvd.Max).tolist() == [True, True, False]
        assert hvd.allreduce(mine, op=hvd.Product).tolist() == [True, False, False]
        for op in (hvd.Sum, hvd.Average):
            with pytest.raises(ValueError, match="bool"):
                hvd.allreduce(mine, op=op)
        assert hvd.broadcast(mine, 1).tolist() == [True, False, False]
        assert hvd.allgather(mine).tolist() == [True, True, False, True, False, False]

    run(body)


@pytest.mark.trial("B31")
def test_compression_on_a_cpu_works_for_any_size(run) -> None:
    """Slices that begin at any address, too."""

    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
            for count in (1, 7, 1000):
                tensor = torch.arange(count + 3.0) / 8
                mine = (tensor * (1 + hvd.rank()))[3:]
                result = hvd.allreduce(mine, compression=compression)
                assert result.dtype == torch.float32
                assert torch.allclose(result, tensor[3:] * 1.5, rtol=2**-7)

    run(body)


def test_a_group_is_reduced_all_or_nothing(run, plane, fusion) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank = hvd.rank()
        tensors = [torch.full((n,), float(rank)) for n in (1, 5, 0)]
        tensors.append(torch.full((2,), rank, dtype=torch.int64))
        results = hvd.grouped_allreduce(tensors, name="g", op=hvd.Sum)
        assert [t.tolist() for t in results] == [[3.0], [3.0] * 5, [], [3, 3]]
        same = hvd.grouped_allreduce_(tensors, op=hvd.Sum)
        assert all(a is b for a, b in zip(same, tensors))
        assert tensors[3].tolist() == [3, 3]
        handle = hvd.grouped_allreduce_async([torch.ones(2), torch.ones(1)], op=hvd.Sum)
        assert [t.tolist() for t in hvd.synchronize(handle)] == [[3.0, 3.0], [3.0]]

    run(body, size=3, env={**plane, **fusion})


def test_the_gradient_of_an_allreduce_is_the_same_allreduce(run) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank = hvd.rank()
        for op, factor in ((hvd.Sum, 3.0), (hvd.Average, 1.5)):
            x = torch.ones(3, requires_grad=True)
            y = hvd.allreduce(x, op=op, name="x", prescale_factor=2.0)
            (y * (rank + 1)).sum().backward()
            assert x.grad.tolist() == [2 * factor] * 3
            a, b = torch.ones(2, requires_grad=True), torch.ones(1)
            out = hvd.grouped_allreduce([a, b], op=op)
            (out[0] * (rank + 1)).sum().backward()
            assert a.grad.tolist() == [factor] * 2
        with torch.no_grad():
            assert not hvd.allreduce(torch.ones(1, requires_grad=True)).requires_grad

    run(body)


def test_the_gradient_can_be_differentiated_again(run) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        x = torch.tensor([2.0], requires_grad=True)
        y = hvd.allreduce(x * x, op=hvd.Sum)
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        (second,) = torch.autograd.grad(first, x)
        assert first.item() == 8.0
        assert second.item() == 4.0

    run(body)


def test_an_operation_in_place_on_a_leaf_that_requires_gradients_is_allowed(run) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        weight = torch.nn.Parameter(torch.full((2,), float(hvd.rank())))
        assert hvd.allreduce_(weight, op=hvd.Sum) is weight
        assert weight.tolist() == [1.0, 1.0]
        assert weight.is_leaf
        assert weight.requires_grad

    run(body)


def sparse_on_one(rank: int) -> object:
    if rank == 0:
        return hvd.allreduce(torch.ones(2), name="t")
    return hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), "t")()


# What a rank does, and what the message says of ranks 0 and 1.
DISAGREEMENTS: dict[str, tuple[Callable[[int], object], str]] = {
    "length": (
        lambda rank: hvd.allreduce(torch.ones(4 + rank), name="t"),
        r"shape: \[4\]@, \[5\]@",
    ),
    "shape": (
        lambda rank: hvd.allreduce(torch.ones((2, 3) if rank else (3, 2)), name="t"),
        r"shape: \[3, 2\]@, \[2, 3\]@",
    ),
    "dtype": (
        lambda rank: hvd.allreduce(torch.ones(4).to((torch.int8, torch.int64)[rank]), name="t"),
        "element type: int8@, int64@",
    ),
    "reduction": (
        lambda rank: hvd.allreduce(torch.ones(4), name="t", op=(hvd.Max, hvd.Sum)[rank]),
        "reduction: max@, sum@",
    ),
    "prescale": (
        lambda rank: hvd.allreduce(torch.ones(4), name="t", prescale_factor=1.0 + rank),
        "prescale factor: 1@, 2@",
    ),
    "postscale": (
        lambda rank: hvd.allreduce(torch.ones(4), name="t", postscale_factor=1.0 + rank),
        "postscale factor: 1@, 2@",
    ),
    "root": (lambda rank: hvd.broadcast(torch.ones(4), rank, name="t"), "root rank: 0@, 1@"),
    "rows": (
        lambda rank: hvd.allgather(torch.ones(2, 3 + rank), name="t"),
        r"shape: \[any, 3\]@, \[any, 4\]@",
    ),
    "members": (
        lambda rank: hvd.grouped_allreduce([torch.ones(1)] * (1 + rank), name="t"),
        "number of tensors: 1@, 2@",
    ),
    "kind": (sparse_on_one, "operation: allreduce@, allgather@"),
}


@pytest.mark.trial("B53")
@pytest.mark.parametrize("what", sorted(DISAGREEMENTS))
def test_a_disagreement_is_an_error_on_every_rank_and_the_next_operation_works(
    run, what: str
) -> None:
    """Nobody hangs or gets a wrong tail; the message has the tensor, both values and ranks."""

    def body(disagree: Callable[[int], object], message: str) -> None:
        for _ in range(2):  # also when the first one is remembered
            with pytest.raises(hvd.HorovodInternalError, match=message) as caught:
                disagree(hvd.rank())
            assert caught.value.code == "Mismatch", caught.value
            assert "Cure: " in str(caught.value)
            assert hvd.allreduce(torch.ones(2), name="good", op=hvd.Sum).tolist() == [2.0, 2.0]

    disagree, values = DISAGREEMENTS[what]
    first, second = values.split("@, ")
    message = rf"\.t' differs .*{first} on rank 0, {second.rstrip('@')} on rank 1"
    run(body, disagree, message)


def test_tensors_of_inference_mode_and_of_subclasses_travel(run, plane) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        class Named(torch.Tensor):
            pass

        with torch.inference_mode():
            tensor = torch.ones(3)
            assert hvd.allreduce(tensor, op=hvd.Sum).tolist() == [2.0] * 3
            hvd.allreduce_(tensor, op=hvd.Sum)
            hvd.broadcast_parameters(torch.nn.Linear(2, 1).state_dict(), 0)
        assert tensor.tolist() == [2.0] * 3
        assert hvd.allgather(tensor).tolist() == [2.0] * 6
        own = torch.ones(3).as_subclass(Named)
        for result in (hvd.allreduce(own), hvd.broadcast(own, 0), hvd.grouped_allreduce([own])[0]):
            assert isinstance(result, Named)
            assert result.tolist() == [1.0] * 3

    run(body, env=plane)
