"""The options of ``horovodrun`` that stand for variables: flags, configuration files, environment.

``hvlrun`` has them all itself; this is for Python code that parses horovodrun's command lines.

Source: ``horovod.runner.common.util.config_parser``.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, MutableMapping
from typing import Any, NamedTuple

__all__ = [
    "OPTIONS",
    "Option",
    "set_args_from_config",
    "set_env_from_args",
    "validate_config_args",
]

LOG_LEVELS = ["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"]


class Option(NamedTuple):
    """One option, as an attribute of the parsed arguments."""

    name: str
    type: type
    variable: str
    section: str
    """Of the configuration file."""
    key: str
    """Within the section."""
    when: str = ""
    """Another option, without which this one is left out of the environment."""


OPTIONS = (
    Option("fusion_threshold_mb", int, "HOROVOD_FUSION_THRESHOLD", "params", "fusion_threshold_mb"),
    Option("cycle_time_ms", float, "HOROVOD_CYCLE_TIME", "params", "cycle_time_ms"),
    Option("cache_capacity", int, "HOROVOD_CACHE_CAPACITY", "params", "cache_capacity"),
    *(
        Option(name, bool, f"HOROVOD_{name.upper()}", "params", name)
        for name in ("hierarchical_allreduce", "hierarchical_allgather", "torus_allreduce")
    ),
    Option("autotune", bool, "HOROVOD_AUTOTUNE", "autotune", "enabled", when="autotune"),
    *(
        Option(f"autotune_{key}", kind, f"HOROVOD_AUTOTUNE_{end}", "autotune", key, when="autotune")
        for key, kind, end in (
            ("log_file", str, "LOG"),
            ("warmup_samples", int, "WARMUP_SAMPLES"),
            ("steps_per_sample", int, "STEPS_PER_SAMPLE"),
            ("bayes_opt_max_samples", int, "BAYES_OPT_MAX_SAMPLES"),
            ("gaussian_process_noise", float, "GAUSSIAN_PROCESS_NOISE"),
        )
    ),
    Option("timeline_filename", str, "HOROVOD_TIMELINE", "timeline", "filename"),
    Option(
        "timeline_mark_cycles",
        bool,
        "HOROVOD_TIMELINE_MARK_CYCLES",
        "timeline",
        "mark_cycles",
        when="timeline_filename",
    ),
    Option("no_stall_check", bool, "HOROVOD_STALL_CHECK_DISABLE", "stall_check", "enabled"),
    Option(
        "stall_check_warning_time_seconds",
        int,
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        "stall_check",
        "warning_time_seconds",
    ),
    Option(
        "stall_check_shutdown_time_seconds",
        int,
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        "stall_check",
        "shutdown_time_seconds",
    ),
    *(
        Option(name, kind, f"HOROVOD_{name.upper()}", "library_options", name)
        for name, kind in (
            ("mpi_threads_disable", bool),
            ("num_nccl_streams", int),
            ("thread_affinity", str),
            ("gloo_timeout_seconds", int),
        )
    ),
    Option("log_level", str, "HOROVOD_LOG_LEVEL", "logging", "level"),
    Option("log_with_timestamp", bool, "HOROVOD_LOG_HIDE_TIME", "logging", "with_timestamp"),
)

# In the file or the environment these say the opposite of the option.
_INVERTED_IN_FILE = {"no_stall_check"}
_INVERTED_IN_ENVIRONMENT = {"log_with_timestamp"}

_VARIABLES = frozenset(option.variable for option in OPTIONS)


def __getattr__(name: str) -> str:
    """``HOROVOD_CYCLE_TIME`` and the like: constants that hold their own names."""
    if name in _VARIABLES:
        return name
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def set_args_from_config(
    args: argparse.Namespace, config: Mapping[str, Any], override_args: set[str]
) -> None:
    """Takes values from a configuration file, where the command line has none.

    Args:
        args: What was parsed; changed.
        config: The file's content, sections of keys.
        override_args: Names of options that the command line has.

    Raises:
        ValueError: ``controller`` is neither gloo nor mpi, a section is no section, or a value has
            the wrong type.
    """
    if not isinstance(config, Mapping):
        raise ValueError(f"the configuration file must hold sections of keys, not {config!r}")
    controller = config.get("controller")
    if controller and not args.use_gloo and not args.use_mpi:
        if str(controller).lower() not in ("gloo", "mpi"):
            raise ValueError(f"controller: {controller} is none: use gloo or mpi")
        setattr(args, f"use_{str(controller).lower()}", True)
    for option in OPTIONS:
        section = config.get(option.section) or {}
        if not isinstance(section, Mapping):
            raise ValueError(f"{option.section}: {section!r} must be a section of keys")
        if section.get(option.key) is not None and option.name not in override_args:
            value = _typed(option, section[option.key])
            setattr(args, option.name, not value if option.name in _INVERTED_IN_FILE else value)


# What a value of a configuration file may be, for an option of each type.
_ACCEPTED = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str, int), "text"),
}


def _typed(option: Option, value: Any) -> Any:
    """A value of a configuration file, when it is of the option's type."""
    kinds, words = _ACCEPTED[option.type]
    if not isinstance(value, kinds) or (isinstance(value, bool) and option.type is not bool):
        raise ValueError(f"{option.section}: {option.key}: {value!r} must be {words}")
    return value


def validate_config_args(args: argparse.Namespace) -> None:
    """Checks the values.

    Raises:
        ValueError: A number is negative, the noise not between 0 and 1, or the affinity no list of
            processors.
    """
    for option in OPTIONS:
        value = getattr(args, option.name)
        if option.type in (int, float) and value is not None and value < 0:
            raise ValueError(f"{option.name}={value} must be >= 0")
    noise = args.autotune_gaussian_process_noise
    if noise is not None and noise > 1:
        raise ValueError(f"autotune_gaussian_process_noise={noise} must be in [0, 1]")
    affinity = args.thread_affinity
    if affinity is not None and not re.fullmatch(r"[0-9]+(,[0-9]+)*", str(affinity)):
        raise ValueError(f"thread_affinity={affinity} must be numbers of processors: 0,1,2")


def set_env_from_args(
    env: MutableMapping[str, str], args: argparse.Namespace
) -> MutableMapping[str, str]:
    """Sets the variables that the options stand for, and returns the environment."""
    for option in OPTIONS:
        value = getattr(args, option.name)
        if value is None or (option.when and not getattr(args, option.when)):
            continue
        if option.name == "fusion_threshold_mb":
            value *= 1 << 20
        elif option.type is bool:
            value = int(bool(value) != (option.name in _INVERTED_IN_ENVIRONMENT))
        env[option.variable] = str(value)
    if args.tcp_flag:
        env["NCCL_IB_DISABLE"] = "1"
    return env
