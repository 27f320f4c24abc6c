"""The public names, and what is said about the ones that are missing."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import horovodlite
import horovodlite.torch as hvd
from horovodlite import HorovodInternalError

# Horovod's parameters in Horovod's order, because scripts pass them by position.
REDUCE = ["tensor", "average", "name", "op", "prescale_factor", "postscale_factor", "process_set"]
SCATTER = ["op", "process_set", "prescale_factor", "postscale_factor"]
SIGNATURES = {
    "allreduce": [*REDUCE[:3], "compression", *REDUCE[3:], "weight"],
    "allreduce_": REDUCE,
    "allreduce_async": REDUCE,
    "allreduce_async_": REDUCE,
    "grouped_allreduce": ["tensors", *REDUCE[1:3], "compression", *REDUCE[3:], "weight"],
    "grouped_allreduce_": ["tensors", *REDUCE[1:]],
    "grouped_allreduce_async": ["tensors", *REDUCE[1:]],
    "grouped_allreduce_async_": ["tensors", *REDUCE[1:]],
    "allgather": ["tensor", "name", "process_set"],
    "allgather_async": ["tensor", "name", "process_set"],
    "grouped_allgather": ["tensors", "name", "process_set"],
    "grouped_allgather_async": ["tensors", "name", "process_set"],
    "broadcast": ["tensor", "root_rank", "name", "process_set"],
    "broadcast_": ["tensor", "root_rank", "name", "process_set"],
    "broadcast_async": ["tensor", "root_rank", "name", "process_set"],
    "broadcast_async_": ["tensor", "root_rank", "name", "process_set"],
    "alltoall": ["tensor", "splits", "name", "process_set"],
    "alltoall_async": ["tensor", "splits", "name", "process_set"],
    "reducescatter": ["tensor", "name", "compression", *SCATTER],
    "reducescatter_async": ["tensor", "name", *SCATTER],
    "grouped_reducescatter": ["tensors", "name", "compression", *SCATTER],
    "grouped_reducescatter_async": ["tensors", "name", *SCATTER],
    "join": ["device"],
    "barrier": ["process_set"],
    "poll": ["handle"],
    "synchronize": ["handle"],
    "ProcessSet": ["ranks_or_comm"],
    "add_process_set": ["process_set"],
    "remove_process_set": ["process_set"],
    "sparse_allreduce_async": ["tensor", "name", "op", "process_set"],
    "broadcast_parameters": ["params", "root_rank", "process_set"],
    "broadcast_optimizer_state": ["optimizer", "root_rank", "model", "process_set"],
    "broadcast_object": ["obj", "root_rank", "name", "process_set"],
    "allgather_object": ["obj", "name", "process_set"],
    "init": ["comm", "process_sets"],
    "start_timeline": ["file_path", "mark_cycles"],
    "SyncBatchNorm": [
        "num_features",
        "eps",
        "momentum",
        "affine",
        "track_running_stats",
        "process_set",
    ],
    "DistributedOptimizer": [
        "optimizer",
        "named_parameters",
        "compression",
        "backward_passes_per_step",
        "op",
        "gradient_predivide_factor",
        "num_groups",
        "groups",
        "sparse_as_dense",
        "process_set",
    ],
}

# Horovod's defaults, by parameter: the same in all functions, but for those below.
DEFAULTS = {
    "average": None,
    "compression": hvd.Compression.none,
    "op": None,
    "prescale_factor": 1.0,
    "postscale_factor": 1.0,
    "process_set": hvd.global_process_set,
    "name": None,
    "splits": None,
    "device": -1,
    "model": None,
    "comm": None,
    "process_sets": None,
    "mark_cycles": False,
    "eps": 1e-5,
    "momentum": 0.1,
    "affine": True,
    "track_running_stats": True,
    "named_parameters": None,
    "backward_passes_per_step": 1,
    "gradient_predivide_factor": 1.0,
    "num_groups": 0,
    "groups": None,
    "sparse_as_dense": False,
    "weight": None,
}
AVERAGE_UNLESS_TOLD = {"DistributedOptimizer"} | {name for name in SIGNATURES if "scatter" in name}
REQUIRED = {("add_process_set", "process_set"), ("remove_process_set", "process_set")}


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_the_parameters_have_the_names_order_and_defaults_of_horovod(name: str) -> None:
    parameters = inspect.signature(getattr(hvd, name)).parameters
    assert list(parameters) == SIGNATURES[name]
    expected = {
        parameter: inspect.Parameter.empty if (name, parameter) in REQUIRED else DEFAULTS[parameter]
        for parameter in parameters
        if parameter in DEFAULTS
    }
    if name in AVERAGE_UNLESS_TOLD:
        expected["op"] = hvd.Average
    if name == "broadcast_object":
        expected["root_rank"] = 0
    found = {parameter: parameters[parameter].default for parameter in expected}
    assert found == expected


# What Horovod's `horovod.torch` exports, by its `__init__.py`.
FUNCTIONS_OF_HOROVOD = [
    "allreduce",
    "allreduce_async",
    "allreduce_",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_allreduce_",
    "grouped_allreduce_async_",
    "sparse_allreduce_async",
    "allgather",
    "allgather_async",
    "grouped_allgather",
    "grouped_allgather_async",
    "broadcast",
    "broadcast_async",
    "broadcast_",
    "broadcast_async_",
    "alltoall",
    "alltoall_async",
    "reducescatter",
    "reducescatter_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "barrier",
    "poll",
    "synchronize",
    "init",
    "shutdown",
    "is_initialized",
    "start_timeline",
    "stop_timeline",
    "size",
    "local_size",
    "cross_size",
    "rank",
    "local_rank",
    "cross_rank",
    "mpi_threads_supported",
    "mpi_enabled",
    "mpi_built",
    "gloo_enabled",
    "gloo_built",
    "nccl_built",
    "ddl_built",
    "ccl_built",
    "cuda_built",
    "rocm_built",
    "add_process_set",
    "remove_process_set",
    "broadcast_parameters",
    "broadcast_optimizer_state",
    "broadcast_object",
    "allgather_object",
    "DistributedOptimizer",
    "SyncBatchNorm",
    "ProcessSet",
]


def test_every_function_of_horovod_is_there_and_its_parameters_are_compared() -> None:
    has_parameters = {
        name for name in FUNCTIONS_OF_HOROVOD if inspect.signature(getattr(hvd, name)).parameters
    }
    assert has_parameters == set(SIGNATURES)


def test_every_exported_name_exists() -> None:
    assert [name for name in hvd.__all__ if not hasattr(hvd, name)] == []
    assert [name for name in horovodlite.__all__ if not hasattr(horovodlite, name)] == []


def test_every_exported_function_says_what_it_does() -> None:
    functions = [getattr(hvd, name) for name in hvd.__all__ if callable(getattr(hvd, name))]
    assert [function for function in functions if not function.__doc__] == []


def test_the_constants_have_the_numbers_of_horovod() -> None:
    numbers = (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product)
    assert numbers == (0, 1, 2, 3, 4, 5)


def test_questions_about_the_build_are_answered_honestly() -> None:
    no = [hvd.mpi_enabled, hvd.gloo_built, hvd.gloo_enabled, hvd.ddl_built]
    no += [hvd.ccl_built, hvd.cuda_built, hvd.rocm_built]
    assert [question() for question in no] == [False] * len(no)
    assert hvd.nccl_built() == 0
    plugins = Path(horovodlite.__file__).parent / "plugins"
    assert hvd.mpi_built() == bool(list(plugins.glob("libhvl_mpi_*.so")))
    with pytest.raises(ValueError, match="MPI is not enabled"):
        hvd.mpi_threads_supported()


@pytest.mark.parametrize(
    "call",
    [
        hvd.rank,
        hvd.size,
        hvd.local_rank,
        hvd.local_size,
        hvd.cross_rank,
        hvd.cross_size,
        hvd.is_homogeneous,
        hvd.barrier,
        hvd.join,
        hvd.global_process_set.size,
        lambda: hvd.add_process_set([0]),
        hvd.stop_timeline,
        lambda: hvd.allgather_object(1),
        lambda: hvd.broadcast_object(1),
    ],
)
def test_outside_of_init_and_shutdown_everything_says_so(call: object) -> None:
    assert not hvd.is_initialized()
    with pytest.raises(ValueError, match=r"Horovod has not been initialized; use hvd.init\(\)."):
        call()


def test_the_internal_error_keeps_its_facts_when_it_is_pickled() -> None:
    error = HorovodInternalError("rank 3 is gone", code="Unavailable", culprit_rank=3)
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, RuntimeError)
    assert (str(copy), copy.code, copy.culprit_rank) == ("rank 3 is gone", "Unavailable", 3)


def test_a_module_that_cannot_be_loaded_gives_an_import_error_with_the_reason() -> None:
    script = (
        "import sys; sys.modules['horovodlite._core'] = None\n"
        "try:\n    import horovodlite\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "compiled module cannot be loaded" in done.stdout
    assert "pip install" in done.stdout


def test_the_knobs_are_listed_with_their_values() -> None:
    knobs = {knob.name: knob for knob in horovodlite.knobs()}
    threshold = knobs["HVL_FUSION_THRESHOLD"]
    assert threshold.alias == "HOROVOD_FUSION_THRESHOLD"
    assert threshold.must_agree
    assert threshold.help


def test_a_knob_that_holds_nonsense_is_a_value_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVL_FUSION_THRESHOLD", "12abc")
    with pytest.raises(ValueError, match=r"HVL_FUSION_THRESHOLD.*12abc"):
        horovodlite.knobs()
    with pytest.raises(ValueError, match=r"HVL_FUSION_THRESHOLD.*12abc"):
        hvd.init()
    assert not hvd.is_initialized()
