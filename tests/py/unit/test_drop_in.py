"""`import horovod` finds horovodlite: the same objects, and clear words about what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.forks import ROOT, Nursery

import horovodlite.torch as hvd
from horovodlite import compat
from horovodlite._hvlrun import LAUNCHER
from horovodlite.exceptions import HorovodVersionMismatchError, get_version_mismatch_message
from horovodlite.torch.optimizer import _DistributedOptimizer

SITE = ROOT / "horovodlite" / "_drop_in_site"
WITHOUT_HOROVOD = {name: v for name, v in os.environ.items() if name != "PYTHONPATH"}


def python(
    script: str, *path: Path, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a script in a Python of its own: imports of this one would get in the way."""
    environment = {**WITHOUT_HOROVOD, "PYTHONPATH": ":".join(map(str, [*path, ROOT]))}
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment,
        cwd=folder,
    )


def value_of(script: str, *path: Path, folder: Path | None = None) -> object:
    """What a script prints as JSON."""
    done = python(f"import json\n{script}", *path, folder=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def forked_value_of(torch_nursery: Nursery) -> Callable[[str], object]:
    """The same from a process that has imported torch already; none of ours."""

    def value(script: str) -> object:
        (ended,) = torch_nursery.run([f"import json\n{script}"], [{}])
        assert ended.status == 0, ended.errors
        return json.loads(ended.output)

    return value


def test_every_module_of_the_table_is_ours_and_the_same_object(forked_value_of) -> None:
    script = """
import importlib, sys
from horovodlite import drop_in
wrong = []
for alias, target in drop_in.ALIASES.items():
    module = importlib.import_module(alias)
    ours = importlib.import_module(target)
    same = module is ours and sys.modules[alias] is ours
    keeps_its_name = ours.__name__ == target and ours.__spec__.name == target
    if not (same and keeps_its_name):
        wrong.append(alias)
print(json.dumps(wrong))
"""
    assert forked_value_of(script) == []


def test_the_usual_ways_of_importing_work(forked_value_of) -> None:
    script = """
import horovodlite.drop_in
import horovod
import horovod.torch as hvd
from horovod.torch.mpi_ops import allreduce, rank, size, synchronize
from horovod.torch import elastic
from horovod.torch.elastic.state import TorchState
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.util import gloo_built
from horovod.runner.common.util import config_parser, hosts
from horovod.runner.common.util.timeout import Timeout
import horovod.runner.launch
import horovodlite, horovodlite.torch
print(json.dumps([
    horovod.__version__,
    horovod.run is horovodlite.run,
    hvd is horovodlite.torch,
    horovod.torch is hvd,
    allreduce is hvd.allreduce,
    HorovodInternalError is hvd.HorovodInternalError,
    elastic.TorchState is TorchState,
    gloo_built(verbose=True),
]))
"""
    assert forked_value_of(script) == ["0.28.1", True, True, True, True, True, True, False]


# What Horovod's own modules import, so that attributes of packages are enough.
REACHED_BY_ATTRIBUTES = [
    "common.basics.HorovodBasics",
    "common.elastic.State",
    "common.exceptions.HorovodInternalError",
    "common.process_sets.ProcessSet",
    "common.util.gloo_built",
    "data.data_loader_base.BaseDataLoader",
    "runner.common.util.hosts.parse_hosts",
    "runner.gloo_run.gloo_run",
    "runner.launch.parse_args",
    "runner.util.threads.in_thread",
    "torch.compression.Compression",
    "torch.elastic.sampler.ElasticSampler",
    "torch.elastic.state.TorchState",
    "torch.functions.broadcast_object",
    "torch.mpi_ops.synchronize",
    "torch.optimizer.DistributedOptimizer",
    "torch.sync_batch_norm.SyncBatchNorm",
]


@pytest.mark.parametrize("first", ["horovod.torch", "horovod", "horovod.runner"])
def test_parts_are_attributes_without_an_import_of_their_own(forked_value_of, first: str) -> None:
    script = f"""
import horovodlite.drop_in
import {first}
import horovod
from operator import attrgetter
missing = []
for path in {REACHED_BY_ATTRIBUTES}:
    try:
        attrgetter(path)(horovod)
    except AttributeError as error:
        missing.append(str(error))
print(json.dumps(missing))
"""
    assert forked_value_of(script) == []


def test_mpi_ops_is_an_attribute_of_the_torch_module(forked_value_of) -> None:
    script = """
import horovodlite.drop_in
import horovod.torch as hvd
print(json.dumps(hvd.mpi_ops.rank is hvd.rank))
"""
    assert forked_value_of(script) is True


@pytest.mark.parametrize(("before", "after"), [(None, "warn"), ("off", "off"), ("error", "error")])
def test_unnamed_operations_of_other_lines_are_a_warning_unless_told_otherwise(
    before: str | None, after: str
) -> None:
    setting = f"os.environ['HVL_UNNAMED_SITES'] = {before!r}" if before else ""
    script = f"""
import os
os.environ.pop("HVL_UNNAMED_SITES", None)
{setting}
import horovodlite.drop_in
print(json.dumps(os.environ["HVL_UNNAMED_SITES"]))
"""
    assert value_of(script) == after


def test_what_is_patched_under_one_name_is_patched_under_the_other(forked_value_of) -> None:
    script = """
from unittest import mock
import horovodlite.drop_in
import horovodlite.torch as ours
with mock.patch("horovod.torch.mpi_ops.size", return_value=7), \\
        mock.patch("horovod.runner.launch.gloo_built", return_value=True):
    import horovodlite.runner.launch as launch
    seen = [ours.size(), launch.gloo_built()]
print(json.dumps(seen))
"""
    assert forked_value_of(script) == [7, True]


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("import horovod.tensorflow", "TensorFlow support, which is not part of horovodlite"),
        ("import horovod.tensorflow.keras as hvd", "TensorFlow support"),
        ("from horovod import spark", "horovod.spark is Horovod's Spark support"),
        ("from horovod.ray import RayExecutor", "Ray support"),
        ("import horovod.mxnet", "MXNet support"),
        ("from horovod.runner.common.util import codec", "belongs to Horovod's own launcher"),
        ("import horovod.runner.util.network", "whose place hvlrun takes"),
        ("import horovod.runner.util.lsf", "Horovod's LSF support"),
        ("import horovod.torch.no_such", "horovod.torch.no_such is no module that horovodlite has"),
        # A module of ours that Horovod has not must not be loaded a second time under its name.
        ("import horovod.torch.ops", "horovod.torch.ops is no module that horovodlite has"),
    ],
)
def test_what_is_not_here_says_what_it_is(forked_value_of, statement: str, words: str) -> None:
    script = (
        "import horovodlite.drop_in\n"
        f"try:\n    {statement}\n"
        "except ImportError as error:\n    print(json.dumps([type(error).__name__, str(error)]))\n"
    )
    kind, text = forked_value_of(script)  # type: ignore[misc]
    assert kind == "ModuleNotFoundError"
    assert words in text


def test_looking_for_a_module_that_is_not_here_finds_none(forked_value_of) -> None:
    """As scripts do that choose a framework by what is installed."""
    absent = "tensorflow tensorflow.keras keras mxnet spark spark.torch ray runner.elastic torch.x"
    script = f"""
import importlib.util
import horovodlite.drop_in
found = []
for name in {absent.split()}:
    try:
        found.append(importlib.util.find_spec("horovod." + name))
    except ModuleNotFoundError as error:  # a part of a part that is not here
        found.append(str(error))
here = [importlib.util.find_spec(name).name for name in ("horovod", "horovod.torch")]
print(json.dumps([found, here]))
"""
    found, here = forked_value_of(script)  # type: ignore[misc]
    assert [text for text in found if text is not None and "is Horovod's" not in text] == []
    assert [found[place] for place in (0, 2, 3, 4, 6, 7, 8)] == [None] * 7
    assert here == ["horovod", "horovodlite.torch"]


def test_what_is_not_here_says_what_it_is_under_the_launcher_too() -> None:
    script = """
import importlib.util
before = importlib.util.find_spec("horovod.tensorflow")
try:
    import horovod.tensorflow
except ModuleNotFoundError as error:
    print(json.dumps([before, str(error)]))
"""
    before, text = value_of(script, SITE)  # type: ignore[misc]
    assert before is None
    assert "TensorFlow support, which is not part of horovodlite" in text


def test_attributes_that_are_missing_can_be_asked_for(forked_value_of) -> None:
    script = """
import horovodlite.drop_in
import horovod
print(json.dumps([hasattr(horovod, "tensorflow"), getattr(horovod, "spark", None)]))
"""
    assert forked_value_of(script) == [False, None]


def test_a_horovod_that_has_been_imported_is_an_error(tmp_path: Path) -> None:
    package = tmp_path / "horovod"
    package.mkdir()
    (package / "__init__.py").write_text("")
    done = python("import horovod, horovodlite.drop_in", tmp_path)
    assert done.returncode != 0
    assert "ImportError: horovod has been imported already, from" in done.stderr
    assert str(package) in done.stderr


def test_an_installed_horovod_is_hidden_and_mentioned(tmp_path: Path) -> None:
    package = tmp_path / "horovod"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('this is Horovod itself')")
    done = python("import horovodlite.drop_in, horovod; print(horovod.run)", tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"Horovod is installed too, at {package}" in done.stderr


def test_the_folder_on_the_path_is_all_that_a_child_needs() -> None:
    script = """
import subprocess, sys
done = subprocess.run([sys.executable, "-c", "import horovod.torch as h; print(h.__name__)"],
                      capture_output=True, text=True)
import horovod.torch
print(json.dumps([horovod.torch.__name__, done.stdout.strip()]))
"""
    assert value_of(script, SITE) == ["horovodlite.torch", "horovodlite.torch"]


def test_the_launcher_makes_scripts_run_unchanged(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nimport horovod.torch as hvd\nhvd.init()\n"
        "total = hvd.allreduce(torch.tensor(1.0 + hvd.rank()), op=hvd.Sum)\n"
        "print(hvd.__name__, hvd.size(), total.item())\n"
    )
    command = [str(LAUNCHER), "--drop-in", "--output", "none", "-np", "2", sys.executable]
    done = subprocess.run(
        [*command, str(script)],
        env={**WITHOUT_HOROVOD, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout.splitlines() == ["horovodlite.torch 2 3.0"] * 2, done.stderr


def test_the_folder_loads_nothing_before_horovod_is_asked_for() -> None:
    script = "import sys; print(json.dumps([m for m in sys.modules if m.startswith('horovod')]))"
    assert value_of(script, SITE) == []


def test_a_sitecustomize_that_the_folder_hides_runs_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.was_here = __file__\n")
    script = """
import sys
import horovod.torch
print(json.dumps([was_here, sys.modules["sitecustomize"].__file__]))
"""
    assert value_of(script, SITE, tmp_path) == [str(tmp_path / "sitecustomize.py")] * 2


def test_questions_of_the_basics_are_answered(forked_value_of) -> None:
    script = """
import horovodlite.drop_in
from horovod.common.basics import HorovodBasics
from horovod.common import util
basics = HorovodBasics("a.py", "mpi_lib_v2")
basics.init()
answers = [basics.rank(), basics.size(), basics.gloo_built(), hasattr(basics, "nonsense")]
basics.shutdown()
with util.env(HVL_TEST_ONLY="1", OTHER=None):
    import os
    answers.append(os.environ["HVL_TEST_ONLY"])
answers.append("HVL_TEST_ONLY" in os.environ)
answers += [util.extension_available("torch"), util.extension_available("tensorflow")]
util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", "a.py", "mpi_lib_v2")
try:
    util.check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", "a.py", "mpi_lib")
except ImportError as error:
    answers.append(str(error).split(":")[0])
answers += [util.is_iterable([]), util.is_iterable(3), util.EXTENSIONS]
answers += [[util.num_rank_is_power_2(n) for n in (0, 1, 3, 4)], util.split_list([1, 2, 3], 2)]
print(json.dumps(answers))
"""
    expected = [0, 1, False, False, "1", False, True, False]
    expected += ["horovod.mxnet is not available", True, False, ["tensorflow", "torch", "mxnet"]]
    assert forked_value_of(script) == [*expected, [False, True, False, True], [[1, 2], [3]]]


def test_an_unknown_handle_gives_none_and_one_warning(forked_value_of) -> None:
    """As in Horovod, whose scripts may wait for a list of handles twice."""
    script = """
import warnings
import horovodlite.drop_in
import horovod.torch as hvd
import torch
hvd.init()
handle = hvd.allreduce_async(torch.ones(1))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    results = [hvd.synchronize(handle), *(hvd.synchronize(h) for h in (handle, handle, 12345))]
found = [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]
print(json.dumps([[r if r is None else r.tolist() for r in results], found]))
"""
    results, warned = forked_value_of(script)
    assert results == [[1.0], None, None, None]
    assert len(warned) == 1
    assert "which was not created or has been cleared" in warned[0]


def test_paths_of_compiled_modules_have_their_ending() -> None:
    ending = compat.get_ext_suffix()
    assert ending.startswith(".")
    assert ending.endswith(".so")
    assert compat.get_extension_full_path("/a/b.py", "c", "lib") == f"/a/c/lib{ending}"


def test_versions_of_frameworks_are_compared() -> None:
    compat.check_installed_version("pytorch", "0.1")
    with pytest.raises(KeyError):
        compat.check_installed_version("pytorch", "0.1", KeyError("why"))
    assert compat.is_version_greater_equal_than("2.10.0+cpu", "2.9.0")
    assert not compat.is_version_greater_equal_than("2.9.0", "2.10.0")
    with pytest.raises(ValueError, match=r"major\.minor\.patch"):
        compat.is_version_greater_equal_than("2.9.0", "2.9")
    with pytest.raises(ValueError, match="versions are text"):
        compat.is_version_greater_equal_than(2.9, "2.9.0")
    message = get_version_mismatch_message("pytorch", "2.9", "2.8")
    assert "2.9" in message
    assert str(HorovodVersionMismatchError("pytorch", "2.9", "2.8")) == message


def test_the_old_argument_average_is_understood() -> None:
    basics = compat.HorovodBasics("a.py", "mpi_lib_v2")
    names = ("Average", "Sum", "Adasum", "Min", "Max", "Product")
    assert [getattr(basics, name) for name in names] == [getattr(hvd, name) for name in names]
    reduction = compat.get_average_backwards_compatibility_fun(basics)
    assert (reduction(None, None), reduction(hvd.Max, None)) == (hvd.Average, hvd.Max)
    for average, expected in ((True, hvd.Average), (False, hvd.Sum)):
        with pytest.warns(DeprecationWarning, match="average is deprecated"):
            assert reduction(None, average) == expected
    with pytest.raises(ValueError, match="supersedes average"):
        reduction(hvd.Sum, False)


def test_the_class_of_wrapped_optimizers_is_for_isinstance_only() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(1))]
    plain = torch.optim.SGD(parameters, lr=0.1)
    assert not isinstance(plain, _DistributedOptimizer)
    assert isinstance(hvd.DistributedOptimizer(plain), _DistributedOptimizer)
    with pytest.raises(TypeError, match="class Mine: _DistributedOptimizer is for isinstance"):

        class Mine(_DistributedOptimizer):
            pass
