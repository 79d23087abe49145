"""Put on PYTHONPATH, it watches a process of a kit from inside: what NVFlare registers, and what reaches its handlers.

Writes lines ``["registered" or "reached", channel, topic]`` to the file that WITNESS names.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from types import ModuleType
from typing import Any


def note(*words: str) -> None:
    with open(os.environ["WITNESS"], "a") as stream:  # noqa: PTH123
        stream.write(json.dumps(words) + "\n")


def watch_cells(module: ModuleType) -> None:
    cell, register = module.CoreCell, module.CoreCell.register_request_cb

    def register_request_cb(self: Any, channel: str, topic: str, cb: Any, *args: Any, **kwargs: Any) -> Any:
        def called(message: Any, *more: Any, **named: Any) -> Any:
            note("reached", channel, str(message.get_header("cn__topic")))
            return cb(message, *more, **named)

        called.__name__ = getattr(cb, "__name__", "cb")
        note("registered", channel, topic)
        return register(self, channel, topic, called, *args, **kwargs)

    cell.register_request_cb = register_request_cb


def watch_requests(module: ModuleType) -> None:
    agent, register = module.FedAdminAgent, module.FedAdminAgent.register_processor

    def register_processor(self: Any, processor: Any) -> None:
        process = processor.process

        def called(request: Any, context: Any) -> Any:
            note("reached", "admin", request.topic)
            return process(request, context)

        processor.process = called
        for topic in processor.get_topics():
            note("registered", "inside admin", topic)
        register(self, processor)

    agent.register_processor = register_processor


WATCHED = {
    "nvflare.fuel.f3.cellnet.core_cell": watch_cells,
    "nvflare.private.fed.client.admin": watch_requests,
}


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name not in WATCHED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        sys.meta_path.insert(0, self)
        assert spec is not None
        assert spec.loader is not None
        execute, loader = spec.loader.exec_module, spec.loader

        def exec_module(module: ModuleType) -> None:
            execute(module)
            WATCHED[name](module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if "WITNESS" in os.environ:
    sys.meta_path.insert(0, Finder())
