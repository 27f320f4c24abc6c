"""Command lines of ``horovodrun``, understood in Python and handed to ``hvlrun``.

Source: ``horovod.runner.launch`` and ``horovod.runner.gloo_run``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NoReturn

from horovodlite import __version__
from horovodlite._environment import environment_with
from horovodlite._hvlrun import LAUNCHER
from horovodlite.compat import gloo_built, mpi_built, nccl_built
from horovodlite.runner.options import (
    LOG_LEVELS,
    OPTIONS,
    set_args_from_config,
    validate_config_args,
)
from horovodlite.runner.settings import Settings

__all__ = [
    "HorovodArgs",
    "check_build",
    "command_line",
    "gloo_built",
    "gloo_run",
    "is_gloo_used",
    "mpi_built",
    "nccl_built",
    "parse_args",
    "run_commandline",
    "run_controller",
]

# Attribute of the arguments -> option of hvlrun. Those that are true or false have no value.
_WITH_VALUE = {
    "num_proc": "-np",
    "min_num_proc": "--min-np",
    "max_num_proc": "--max-np",
    "slots": "--slots-per-host",
    "elastic_timeout": "--elastic-timeout",
    "reset_limit": "--reset-limit",
    "hosts": "-H",
    "hostfile": "--hostfile",
    "host_discovery_script": "--host-discovery-script",
    "start_timeout": "--start-timeout",
    "ssh_port": "--ssh-port",
    "ssh_identity_file": "--ssh-identity-file",
    "output_filename": "--output-filename",
    "mpi_args": "--mpi-args",
    "binding_args": "--binding-args",
    "config_file": "--config-file",
}
_SWITCHES = {
    "check_build": "--check-build",
    "disable_cache": "--disable-cache",
    "verbose": "--verbose",
    "use_gloo": "--gloo",
    "use_mpi": "--mpi",
    "use_jsrun": "--jsrun",
    "tcp_flag": "--tcp",
    "prefix_output_with_timestamp": "--prefix-output-with-timestamp",
}
_OTHERS = ("command", "cooldown_range", "executable", "nics", "run_func")


class HorovodArgs(argparse.Namespace):
    """The options of a job, None where nobody has chosen; one rank unless it says otherwise."""

    def __init__(self, **chosen: Any) -> None:
        names = [*_WITH_VALUE, *_SWITCHES, *_OTHERS, *(option.name for option in OPTIONS)]
        super().__init__(**{**dict.fromkeys(names), "num_proc": 1, **chosen})


def command_line(args: argparse.Namespace) -> list[str]:
    """The options of hvlrun for a job, but for the variables, which set_env_from_args() sets."""
    words = []
    for name, flag in _WITH_VALUE.items():
        value = getattr(args, name)
        if value is not None and name != "config_file":  # it has been read
            words += [flag, str(value)]
    words += [flag for name, flag in _SWITCHES.items() if getattr(args, name)]
    if args.cooldown_range is not None:
        words += ["--blacklist-cooldown-range", *map(str, args.cooldown_range)]
    if args.nics:
        words += ["--network-interfaces", ",".join(sorted(args.nics))]
    return words


class _Interfaces(argparse.Action):
    """Collects names, separated by commas or given in several options."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        before = getattr(namespace, self.dest) or set()
        setattr(namespace, self.dest, before | set(values.split(",")))


class _CheckBuild(argparse.Action):
    """Asks what this build can do, for which no number of ranks is needed."""

    def __init__(self, *args: Any, ranks: argparse.Action, **how: Any) -> None:
        super().__init__(*args, **how)
        self._ranks = ranks

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: Any,  # noqa: ARG002
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        namespace.check_build = True
        self._ranks.required = False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Runs a command as the ranks of a job.")
    add = parser.add_argument
    add("-v", "--version", action="version", version=__version__)
    ranks = add("-np", "--num-proc", dest="num_proc", type=int, required=True)
    add("-cb", "--check-build", action=_CheckBuild, ranks=ranks, nargs=0)
    add("--start-timeout", type=int)
    add("--network-interfaces", "--network-interface", action=_Interfaces, dest="nics")
    add("--output-filename")
    add("--config-file")
    add("-p", "--ssh-port", type=int)
    add("-i", "--ssh-identity-file")
    add("--min-np", "--min-num-proc", dest="min_num_proc", type=int)
    add("--max-np", "--max-num-proc", dest="max_num_proc", type=int)
    add("--slots-per-host", dest="slots", type=int)
    add("--elastic-timeout", type=int)
    add("--reset-limit", type=int)
    add("--blacklist-cooldown-range", dest="cooldown_range", type=int, nargs=2)
    add("--mpi-args")
    add("--binding-args")
    for name, flag in _SWITCHES.items():
        if name == "check_build":
            continue
        also = ["-prefix-timestamp"] if name == "prefix_output_with_timestamp" else []
        add(*also, flag, dest=name, action="store_true", default=None)
    hosts = parser.add_mutually_exclusive_group()
    hosts.add_argument("-H", "--hosts")
    hosts.add_argument("-hostfile", "--hostfile")
    hosts.add_argument("--host-discovery-script")
    _add_variables(parser)
    add("command", nargs=argparse.REMAINDER)
    return parser


def _add_variables(parser: argparse.ArgumentParser) -> None:
    """The options that stand for variables."""
    for option in OPTIONS:
        flag = "--" + option.name.replace("_", "-")
        if option.type is not bool:
            choices = LOG_LEVELS if option.name == "log_level" else None
            parser.add_argument(flag, dest=option.name, type=option.type, choices=choices)
            continue
        yes, no = [flag], [f"--no-{flag[2:]}"]
        if option.name == "no_stall_check":
            no = ["--stall-check"]
        elif option.name == "log_with_timestamp":
            yes += ["--no-log-hide-timestamp"]
            no = ["--log-without-timestamp", "--log-hide-timestamp"]
        either = parser.add_mutually_exclusive_group()
        for flags, value in ((yes, True), (no, False)):
            either.add_argument(*flags, dest=option.name, action="store_const", const=value)


def parse_args() -> HorovodArgs:
    """Returns what ``sys.argv`` and the configuration file that it names ask for. Local.

    What the command line has is stronger than the file.

    Raises:
        ValueError: A number out of range, or an unknown controller.
        SystemExit: The command line is wrong.
    """
    args = _parser().parse_args(namespace=HorovodArgs(num_proc=None))
    if args.config_file:
        try:
            import yaml  # type: ignore[import-untyped]
        except ImportError as error:
            raise ImportError("--config-file needs PyYAML: pip install pyyaml") from error

        given = {option.name for option in OPTIONS if getattr(args, option.name) is not None}
        config = yaml.safe_load(Path(args.config_file).read_text(encoding="utf-8")) or {}
        set_args_from_config(args, config, given)
    validate_config_args(args)
    return args


def gloo_run(
    settings: Settings,
    nics: Iterable[str] | None,
    env: Mapping[str, str],
    server_ip: str | None,  # noqa: ARG001  (there is no such server)
    command: Sequence[str],
) -> None:
    """Runs a command as the ranks of a job and blocks until it has ended.

    Args:
        settings: All but ``key``, ``run_func_mode`` and ``elastic`` count.
        nics: Names of network interfaces.
        env: Variables for the ranks, besides this process's own.
        server_ip: Changes nothing.
        command: Program and arguments.

    Raises:
        RuntimeError: The job failed; hvlrun has said why on standard error.
    """
    options = HorovodArgs(
        num_proc=settings.num_proc,
        hosts=settings.hosts,
        output_filename=settings.output_filename,
        verbose=settings.verbose,
        prefix_output_with_timestamp=settings.prefix_output_with_timestamp,
        ssh_port=settings.ssh_port,
        ssh_identity_file=settings.ssh_identity_file,
        start_timeout=settings.start_timeout and max(1, int(settings.start_timeout.remaining())),
        mpi_args=settings.extra_mpi_args,
        binding_args=settings.binding_args,
        tcp_flag=settings.tcp_flag,
        nics=sorted(nics or settings.nics or ()) or None,
    )
    _run_command(options, env, command)


def _run_command(
    options: argparse.Namespace, env: Mapping[str, str], command: Sequence[str]
) -> None:
    """Runs hvlrun with all options.

    Raises:
        RuntimeError: It failed, and has said why on standard error.
    """
    separated = ["--", *command] if command else []
    done = subprocess.run(
        [str(LAUNCHER), *command_line(options), *separated],
        env=environment_with(env),
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the job failed: hvlrun ended with exit status {done.returncode}")


def check_build(verbose: bool) -> NoReturn:  # noqa: ARG001
    """Prints what this build can do, and ends the process with status 0.

    Args:
        verbose: Changes nothing.

    Raises:
        SystemExit: Always.
    """
    sys.stdout.flush()
    sys.exit(subprocess.run([str(LAUNCHER), "--check-build"], check=False).returncode)


def is_gloo_used(
    use_gloo: bool | None = None, use_mpi: bool | None = None, use_jsrun: bool | None = None
) -> bool:
    """Returns whether run_controller() calls `gloo_run` when it is told the same. Local."""
    return bool(use_gloo) or not (use_mpi or use_jsrun)


def run_controller(
    use_gloo: bool | None,  # noqa: ARG001
    gloo_run: Callable[[], Any],
    use_mpi: bool | None,
    mpi_run: Callable[[], Any],  # noqa: ARG001
    use_jsrun: bool | None,
    js_run: Callable[[], Any],  # noqa: ARG001
    verbosity: int | None,  # noqa: ARG001
) -> None:
    """Calls `gloo_run`, which stands for the only way of starting ranks that there is here.

    Raises:
        ValueError: MPI or jsrun is asked for.
    """
    if use_mpi or use_jsrun:
        raise ValueError("horovodlite starts ranks with hvlrun only, not with MPI or jsrun")
    gloo_run()


def _run(args: HorovodArgs) -> list[Any] | None:
    """Runs the job of parsed arguments: a function, whose results it returns, or a command."""
    from horovodlite.runner import run_function
    from horovodlite.runner.options import set_env_from_args

    variables = dict(set_env_from_args({}, args))
    if args.run_func is not None:
        return run_function(args, args.run_func, (), {}, variables)
    _run_command(args, variables, args.command or [])
    return None


def run_commandline() -> None:
    """Becomes ``hvlrun`` with this process's own arguments."""
    os.execv(LAUNCHER, ["hvlrun", *sys.argv[1:]])
