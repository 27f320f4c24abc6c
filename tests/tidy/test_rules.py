"""Each rule finds what it forbids, and leaves the lawful counterpart alone."""

from __future__ import annotations

import pytest

from . import rules
from .rules import RULES, Files, Rule

MAP = """
| L | room | in one line | may use |
|---|---|---|---|
| 0 | `base` | errors | std, fmt |
| 1 | `config` | knobs | base |
| 2 | `net` | links | base |
| 3 | `session` | joins | all of the above |
| 4 | `../python`, C++ programs | bindings | public API, config |
"""


def tree(path: str, text: str, **more: str) -> Files:
    return {rules.ROOM_MAP: MAP, path: text, **more}


def python_function(lines: int) -> str:
    return 'def f() -> None:\n    """A docstring\n    is free."""\n' + "    pass\n" * (lines - 1)


def cpp_function(lines: int) -> str:
    return "namespace a {\nclass B {\n  void F() {\n" + "    ;\n" * (lines - 2) + "  }\n};\n}\n"


def packages(readme: str) -> Files:
    return {"csrc/cmake/packages.txt": "build g++ c\nbuild libx y\ndev z z\n", "README.md": readme}


# (rule, breaks it, keeps it)
SAMPLES: list[tuple[Rule, Files, Files]] = [
    (
        rules.all_in_build,
        tree("tests/cpp/net/fd_test.cc", "", **{"tests/cpp/net/CMakeLists.txt": "old_fd_test.cc"}),
        tree("tests/cpp/net/fd_test.cc", "", **{"tests/cpp/net/CMakeLists.txt": "S fd_test.cc)"}),
    ),
    (
        rules.all_in_build,
        tree("tests/cpp/net/fd.cc", "", **{"tests/cpp/net/CMakeLists.txt": "${kind}_world.cc"}),
        tree("tests/cpp/net/a_world.cc", "", **{"tests/cpp/net/CMakeLists.txt": "${b}_world.cc)"}),
    ),
    (
        rules.arrows,
        tree("csrc/base/log.h", '#include "csrc/config/config.h"'),
        tree("csrc/session/a.cc", '#include "csrc/net/fd.h"\n#include "csrc/session/b.h"'),
    ),
    (
        rules.arrows,
        tree("python/module.cc", '#include "csrc/net/fd.h"'),
        tree("python/module.cc", '#include "csrc/config/config.h"\n#include "horovodlite/types.h"'),
    ),
    (
        rules.arrows,
        tree("csrc/include/horovodlite/status.h", '#include "csrc/base/str.h"'),
        tree("csrc/include/horovodlite/status.h", '#include "horovodlite/types.h"'),
    ),
    (
        rules.arrows,
        tree("csrc/hall/a.cc", ""),
        tree("csrc/net/a.cc", "#include <vector>"),
    ),
    (
        rules.file_comment,
        tree("csrc/base/a.h", "#pragma once\n"),
        tree("csrc/base/a.h", "// What it is for.\n#pragma once\n"),
    ),
    (rules.function_length, tree("a.cc", cpp_function(71)), tree("a.cc", cpp_function(70))),
    (rules.function_length, tree("a.py", python_function(71)), tree("a.py", python_function(70))),
    (
        rules.install_line,
        packages("apt-get install -y g++"),
        packages("text\napt-get install -y g++ libx\n"),
    ),
    (rules.line_length, tree("a.cc", "x" * 101), tree("a.cc", "x" * 100)),
    (
        rules.links,
        tree("docs/a.md", "see [b](b.md)"),
        tree(
            "docs/a.md",
            "see [b](../src/b.md#c), [d](https://d.e) and [f](../src)",
            **{"src/b.md": ""},
        ),
    ),
    (
        rules.linked_rooms,
        tree("csrc/net/CMakeLists.txt", "hvl_room(net SOURCES a.cc USES base config)"),
        tree("csrc/net/CMakeLists.txt", "hvl_room(net SOURCES a.cc USES base LINKS OpenSSL)"),
    ),
    (
        rules.no_framework,
        tree("csrc/base/a.h", "#include <torch/torch.h>"),
        tree("python/a.h", "#include <pybind11/pybind11.h>"),
    ),
    (
        rules.no_framework,
        tree("launcher/a.cc", "#include <Python.h>"),
        tree("csrc/base/a.h", "#include <fmt/core.h>"),
    ),
    (
        rules.no_framework,
        tree("csrc/session/a.cc", "#include <mpi.h>"),
        tree("csrc/plugins/mpi/a.cc", "#include <mpi.h>"),
    ),
    (
        rules.no_os_environ,
        tree("horovodlite/a.py", "x = os.environ['A']"),
        tree(
            "tests/py/a.py", "x = os.environ['A']", **{"horovodlite/_environment.py": "os.environ"}
        ),
    ),
    (
        rules.one_getenv,
        tree("csrc/net/a.cc", 'auto x = std::getenv("A");'),
        tree("csrc/config/env_source.cc", "std::getenv(x)", **{"csrc/net/a.cc": "// getenv"}),
    ),
    (
        rules.pragma_once,
        tree("a.h", "// Comment.\n#include <vector>\n#pragma once\n"),
        tree("a.h", "// Comment.\n\n#pragma once\n#include <vector>\n"),
    ),
    (
        rules.rooted_includes,
        tree("csrc/net/a.cc", '#include "fd.h"', **{"csrc/net/fd.h": ""}),
        tree("csrc/net/a.cc", '#include "csrc/net/fd.h"', **{"csrc/net/fd.h": ""}),
    ),
    (
        rules.todo_topic,
        tree("a.cc", "// TODO: later"),
        tree("a.cc", "// TODO(windows): named pipes."),
    ),
    (rules.todo_topic, tree("a.cc", "// FIXME(me): wrong"), tree("a.cc", "// fixed")),
]


@pytest.mark.parametrize(("rule", "bad", "good"), SAMPLES)
def test_the_rule_tells_bad_from_good(rule: Rule, bad: Files, good: Files) -> None:
    assert list(rule(bad))
    assert not list(rule(good))


def test_every_rule_has_a_bad_sample() -> None:
    assert {rule for rule, _, _ in SAMPLES} == set(RULES)


def test_the_room_map_expands_all_of_the_above() -> None:
    allowed = rules.room_map(MAP)
    assert allowed["base"] == set()
    assert allowed["session"] == {"base", "config", "net"}
    assert allowed["python"] == {"config"}


def test_blocks_ignore_braces_in_comments_strings_and_characters() -> None:
    code = "void F() {\n  // {\n  auto s = \"{{\";\n  char c = '{';\n  int n = 1'000;\n}\n"
    assert list(rules.cpp_blocks(code)) == [(1, 6)]
