"""A part of PyTorch's own tests of a backend; upstream.py runs all of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import upstream

# One of each kind, of those that take least time.
CHOSEN = [
    "test_Backend_enum_class",
    "test_all_gather",
    "test_all_gather_coalesced_simple",
    "test_all_gather_complex",
    "test_all_gather_full_group",
    "test_all_gather_object_subgroup",
    "test_all_reduce_coalesced_max_min",
    "test_all_reduce_coalesced_sum",
    "test_all_reduce_complex_unsupported_ops",
    "test_all_reduce_full_group_min",
    "test_all_reduce_group_product",
    "test_all_reduce_sum",
    "test_all_reduce_sum_async",
    "test_all_reduce_sum_complex",
    "test_all_to_all",
    "test_all_to_all_complex",
    "test_all_to_all_group",
    "test_all_to_all_single_equal_split",
    "test_all_to_all_single_unequal_split_complex",
    "test_allgather_object",
    "test_barrier",
    "test_barrier_full_group",
    "test_barrier_group",
    "test_broadcast",
    "test_broadcast_full_group",
    "test_broadcast_group",
    "test_broadcast_object_list",
    "test_gather",
    "test_gather_checks",
    "test_gather_group",
    "test_gather_object",
    "test_irecv",
    "test_isend",
    "test_new_subgroups",
    "test_new_subgroups_by_enumeration",
    "test_reduce_full_group_max",
    "test_reduce_group_sum",
    "test_reduce_min",
    "test_reduce_product",
    "test_scatter",
    "test_scatter_checks",
    "test_scatter_complex",
    "test_scatter_group",
    "test_scatter_object_list",
    "test_send_recv",
    "test_send_recv_any_source",
    "test_send_recv_with_tag",
    "test_sparse_all_reduce_sum",
    "test_DistributedDataParallelCPU",
    "test_ddp_comm_hook_logging",
    "test_ddp_control_flow_same_across_ranks",
    "test_ddp_grad_div_uneven_inputs",
    "test_ddp_ignore_params_arg",
    "test_ddp_join_model_equivalence",
    "test_ddp_multiple_nested_unused_params_error",
    "test_ddp_static_graph_nested_types",
    "test_ddp_uneven_inputs",
    "test_verify_model_across_rank_without_logger",
    "test_periodic_model_averager",
    "test_post_localSGD_optimizer_parity",
]


@pytest.mark.parametrize("name", CHOSEN)
def test_upstream(shared_pool: Any, name: str) -> None:
    outcome, details = upstream.run_on(shared_pool.get(), "horovodlite", name)
    assert outcome == "pass", details


def test_what_is_chosen_is_not_excluded() -> None:
    assert not set(CHOSEN) & set(upstream.EXCLUDED)
