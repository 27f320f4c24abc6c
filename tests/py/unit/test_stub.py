"""horovodlite/_core.pyi says what the compiled module has: names, arguments and defaults."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType

import horovodlite
from horovodlite import _core

STUB = ast.parse((Path(horovodlite.__file__).parent / "_core.pyi").read_text())


def public(names: list[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def stub_classes() -> dict[str, ast.ClassDef]:
    return {
        node.name: node
        for node in STUB.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }


def stub_functions(body: list[ast.stmt]) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def stub_arguments(function: ast.FunctionDef) -> list[tuple[str, object]]:
    arguments = function.args.posonlyargs + function.args.args
    defaults = [None] * (len(arguments) - len(function.args.defaults)) + [
        ast.unparse(default) for default in function.args.defaults
    ]
    return [(a.arg, d) for a, d in zip(arguments, defaults) if a.arg != "self"]


def module_arguments(docstring: str) -> list[tuple[str, object]]:
    """From the signature that pybind11 puts on the first line: name(self: T, a: int = 0) -> R."""
    inside = docstring[docstring.index("(") + 1 : docstring.index(") ->")]
    depth, parts, current = 0, [], ""
    for character in inside + ",":
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += character
    found = [re.fullmatch(r"(\w+)(?::.*?)?(?: = (.*))?", part) for part in parts if part]
    return [(m[1], m[2]) for m in found if m is not None and m[1] != "self"]


def is_foreign(value: object) -> bool:
    return isinstance(value, ModuleType) and not value.__name__.startswith(_core.__name__)


def test_the_stub_has_exactly_the_names_of_the_module() -> None:
    in_stub = public(
        [node.name for node in STUB.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
        + [node.target.id for node in STUB.body if isinstance(node, ast.AnnAssign)]
    )
    in_module = {name for name in public(dir(_core)) if not is_foreign(getattr(_core, name))}
    assert in_stub == in_module


def test_the_classes_of_the_stub_have_exactly_the_members_of_the_module() -> None:
    for name, node in stub_classes().items():
        inner = {child.name for child in node.body if isinstance(child, ast.ClassDef)}
        members = inner | set(stub_functions(node.body)) - {"__init__"}
        assert members == public(list(vars(getattr(_core, name)))), name


def test_functions_have_the_arguments_and_defaults_of_the_stub() -> None:
    checked = 0
    owners = [(_core, STUB.body)]
    owners += [(getattr(_core, name), node.body) for name, node in stub_classes().items()]
    for owner, body in owners:
        for name, function in stub_functions(body).items():
            member = getattr(owner, name)
            if isinstance(member, property):
                continue
            assert stub_arguments(function) == module_arguments(member.__doc__), name
            checked += 1
    assert checked > 10
