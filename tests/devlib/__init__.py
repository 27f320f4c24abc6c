"""The parts of `tests/dev`: standard library only, Python 3.9 or later."""
