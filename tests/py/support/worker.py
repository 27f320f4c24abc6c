"""One rank of a RankPool: a process that runs the functions it is sent, one after the other."""

from __future__ import annotations

import os
import traceback
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle


def call(payload: bytes) -> tuple[str, Any]:
    """Runs (function, arguments, environment) inside init() ... shutdown()."""
    import horovodlite.torch as hvd

    function, arguments, environment, initialize = cloudpickle.loads(payload)
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        if initialize:
            hvd.init()
        result = function(*arguments)
        hvd.shutdown()
        return "value", result
    except Exception:
        text = traceback.format_exc()
        hvd.shutdown()
        return "error", text
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def main(descriptor: int) -> None:
    """Serves until the connection closes."""
    connection = Connection(descriptor)
    connection.send_bytes(b"ready")
    while True:
        try:
            payload = connection.recv_bytes()
        except EOFError:
            return
        kind, value = call(payload)
        try:
            reply = cloudpickle.dumps((kind, value))
        except Exception:
            reply = cloudpickle.dumps(("error", traceback.format_exc()))
        connection.send_bytes(reply)
