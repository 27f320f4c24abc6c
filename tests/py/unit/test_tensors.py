"""The order of dimensions in memory as a number."""

from __future__ import annotations

import itertools

import pytest
import torch

from horovodlite.torch._tensors import dimensions_in_order, in_memory_order, layout_of


def test_row_major_is_zero_whatever_the_strides_of_single_dimensions() -> None:
    assert layout_of(torch.empty(2, 3, 4)) == 0
    assert layout_of(torch.empty(())) == 0
    assert layout_of(torch.empty(0, 3)) == 0
    assert layout_of(torch.empty_strided((1, 5), (99, 1))) == 0
    assert layout_of(torch.empty(4, 1, 1, 1).to(memory_format=torch.channels_last)) == 0


def test_every_order_of_the_dimensions_has_its_own_number() -> None:
    numbers = {}
    for order in itertools.permutations(range(4)):
        tensor = torch.empty(2, 3, 4, 5)
        memory = torch.empty([tensor.shape[dim] for dim in order])
        view = memory.permute([order.index(dim) for dim in range(4)])
        assert view.shape == tensor.shape
        numbers[layout_of(view)] = order
        if order != (0, 1, 2, 3):
            assert dimensions_in_order(layout_of(view)) == list(order)
    assert len(numbers) == 24
    assert None not in numbers


def test_dimensions_of_one_element_do_not_change_the_number() -> None:
    a = torch.empty(2, 1, 4, 5).to(memory_format=torch.channels_last)
    b = torch.empty(2, 4, 5, 1).permute(0, 3, 1, 2)
    c = torch.empty_strided(a.shape, (20, 7, 1, 4))
    assert layout_of(a) == layout_of(b) == 0
    assert layout_of(c) == layout_of(torch.empty_strided(a.shape, (20, 1, 1, 4))) != 0


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(10)[::2],
        torch.zeros(3, 1).expand(3, 4),
        torch.zeros(4, 4)[:, :2],
        torch.zeros(6, 6).t()[1:3],
        torch.zeros(*[2] * 9).transpose(0, 8),
    ],
)
def test_memory_with_holes_or_overlaps_has_no_number_and_is_copied(tensor: torch.Tensor) -> None:
    assert layout_of(tensor) is None
    copy, layout = in_memory_order(tensor)
    assert layout == 0
    assert copy.is_contiguous()
    assert torch.equal(copy, tensor)


def test_a_sign_that_is_applied_on_reading_is_applied_before_memory_is_read() -> None:
    tensor = torch.imag(torch.tensor([1 + 2j]).conj())
    assert tensor.is_neg()
    assert in_memory_order(tensor)[0].tolist() == [-2.0]
    assert not in_memory_order(tensor)[0].is_neg()
