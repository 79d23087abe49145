"""Put on PYTHONPATH, it sits inside the processes of a kit: watches what reaches NVFlare, and attacks other processes.

Writes lines to the file that WITNESS names:

- ``["registered", channel, topic, cell]``: what NVFlare has a handler for, for messages and for streams;
- ``["reached", channel, topic]``: what came to a handler;
- ``["judged", cell, number]``: a shot that the cell's guard decided on;
- ``["passed", cell, number]``: a shot that got past the guard. It goes on to where it is for, and ends there: no
  handler is called, so that a run goes on also where the shot was an order to end it.

If SHOTS names a folder, each cell waits there for a file with its name, and sends the messages that this lists.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import threading
import time
from types import ModuleType
from typing import Any


def note(*words: str) -> None:
    with open(os.environ["WITNESS"], "a") as stream:  # noqa: PTH123
        stream.write(json.dumps(words) + "\n")


def watch_cells(module: ModuleType) -> None:
    cell, register = module.CoreCell, module.CoreCell.register_request_cb
    process, start = cell.process_message, cell.start

    def register_request_cb(self: Any, channel: str, topic: str, cb: Any, *args: Any, **kwargs: Any) -> Any:
        def called(message: Any, *more: Any, **named: Any) -> Any:
            note("reached", channel, str(message.get_header("cn__topic")))
            return cb(message, *more, **named)

        called.__name__ = getattr(cb, "__name__", "cb")
        note("registered", channel, topic, self.my_info.fqcn)
        return register(self, channel, topic, called, *args, **kwargs)

    def process_message(self: Any, endpoint: Any, connection: Any, app_id: int, message: Any) -> None:
        """The guard is above this one, since it is put there later."""
        if number := message.get_header("shot"):
            note("passed", self.my_info.fqcn, number)
            if message.get_header("cn__destination") == self.my_info.fqcn:
                return
        process(self, endpoint, connection, app_id, message)

    def start_and_shoot(self: Any) -> None:
        start(self)
        if "SHOTS" in os.environ:
            threading.Thread(target=shoot, args=(self,), daemon=True).start()

    cell.register_request_cb, cell.process_message, cell.start = register_request_cb, process_message, start_and_shoot


def watch_streams(module: ModuleType) -> None:
    register = module.ByteReceiver.register_callback

    def register_callback(self: Any, channel: str, topic: str, *args: Any, **kwargs: Any) -> None:
        note("registered", channel, topic, self.cell.my_info.fqcn)
        register(self, channel, topic, *args, **kwargs)

    module.ByteReceiver.register_callback = register_callback


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


def watch_guard(module: ModuleType) -> None:
    judge = module.Guard.fault_of

    def fault_of(self: Any, me: str, cell: str, connection: Any, message: Any) -> str | None:
        fault: str | None = judge(self, me, cell, connection, message)
        if number := message.get_header("shot"):
            note("judged", me, number)
        return fault

    module.Guard.fault_of = fault_of


WATCHED = {
    "nvflare.fuel.f3.cellnet.core_cell": watch_cells,
    "nvflare.fuel.f3.streaming.byte_receiver": watch_streams,
    "nvflare.private.fed.client.admin": watch_requests,
    "fedspray.deploy.network.guard": watch_guard,
}


def shoot(cell: Any) -> None:
    """Sends the messages of the plan for this cell, each over its connection to some cell, with the plan's headers."""
    from nvflare.fuel.f3.message import Message

    plan = os.path.join(os.environ["SHOTS"], f"{cell.my_info.fqcn}.json")  # noqa: PTH118
    while not os.path.exists(plan):  # noqa: PTH110
        time.sleep(0.1)
    with open(plan) as stream:  # noqa: PTH123
        shots = json.load(stream)
    for through, headers in shots:
        message = Message(dict(headers), None)
        for each in cell.out_req_filter_reg.find(headers["cn__channel"], headers["cn__topic"]) or []:
            each.cb(message, *each.args, **each.kwargs)  # adds what the attacker can prove about itself
        message.headers.update(headers)
        cell._send_to_endpoint(cell.agents[through].endpoint, message)


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
