"""The examples in the docstrings run as they stand, in a world of one."""

from __future__ import annotations

import doctest
import importlib
import os
import pkgutil
from unittest import mock

import pytest

import horovodlite
import horovodlite.torch as hvd

MODULES = [
    module.name
    for module in pkgutil.walk_packages(horovodlite.__path__, "horovodlite.")
    if not module.name.endswith(("._core", ".__main__"))
]


@pytest.mark.parametrize("name", ["horovodlite", *MODULES])
def test_the_examples_run(name: str) -> None:
    with mock.patch.dict(os.environ):  # drop_in sets a variable
        try:
            failed, _ = doctest.testmod(importlib.import_module(name))
        finally:
            hvd.shutdown()
    assert failed == 0
