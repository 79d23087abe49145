"""Whether a site is ready: its kit, certificates, data and agreement, and one local epoch as a rehearsal."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedspray.data.federation import Client
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.package import digest
from fedspray.deploy.provisioning import certificates
from fedspray.deploy.provisioning.kits import check_policies
from fedspray.deploy.site.kit import Site
from fedspray.deploy.site.status import ask_server, server_of
from fedspray.engine.local import InProcess
from fedspray.engine.process import process_peak
from fedspray.engine.worker import Request
from fedspray.errors import InputError, MissingDataError
from fedspray.nn import tree

PARENT_MEGABYTES = 95
"""What the site's main process needs beside its job process, as measured."""


def check_site(site: Site, fingerprint: str | None = None) -> dict[str, Any]:
    """Everything that can be checked without the server; raises an `InputError` at the first thing that is wrong.

    Args:
        site: with its data.
        fingerprint: what the coordinator says that the federation's is, spaced as it likes.
    """
    _check_kit(site)
    if fingerprint is not None:
        _compare(site, fingerprint)
    host, port = server_of(site.folder)
    card = certificates.certificate_of(site.folder)
    if card["name"] != site.name:
        raise InputError(f"the certificate is for {card['name']!r}, but this kit is for {site.name!r}")
    agreement = site.agreement()
    check_policies(site.folder)
    state, reason = ask_server(site.folder, site.proxy)
    client = site.client(agreement, agreement.settings.seeds[0])
    counts = np.bincount(client.graph.labels[client.graph.labelled], minlength=client.graph.num_classes)
    return {
        "site": site.name,
        "server": f"{host}:{port}",
        "reachable": state == "connected",
        "reason": reason,
        "certificate": card,
        "agreement": agreement.fingerprint(),
        "fingerprint": certificates.federation_fingerprint(site.folder, agreement.fingerprint()),
        "leaves": agreement.leaves(),
        "code": None if agreement.code is None else digest(agreement.code),
        "algorithm": agreement.settings.algorithm,
        "backbone": agreement.settings.of_client(site.name).backbone,
        "data": str(site.data),
        "nodes": client.graph.num_nodes,
        "expected_nodes": site.expected_nodes,
        "edges": client.graph.num_edges,
        "label_counts": counts.tolist(),
        **_rehearse(site, agreement, client),
    }


def _check_kit(site: Site) -> None:
    """The kit is complete, and can be written where it must."""
    for name in ("startup/fed_client.json", "startup/client.crt", "startup/rootCA.pem", "local/authorization.json"):
        if not (site.folder / name).is_file():
            raise MissingDataError(f"{site.folder / name} is missing: unpack the kit's zip file again")
    site.check_writable()


def _compare(site: Site, told: str) -> None:
    own = certificates.federation_fingerprint(site.folder, site.agreement().fingerprint())
    if not own.startswith(compact := "".join(told.split()).lower()) or len(compact) < 32:
        raise InputError(
            f"the fingerprint is {told!r}, but this kit's is {certificates.to_read_aloud(own)!r}: it is of another "
            "federation or agreement, so do not start it"
        )


def _rehearse(site: Site, agreement: Agreement, client: Client) -> dict[str, Any]:
    """One local epoch on the site's own data; nothing is kept and nothing is sent."""
    roster, run = agreement.roster, agreement.resolved
    torch.set_num_threads(site.threads)
    k, seed = roster.clients.index(site.name), run.settings.seeds[0]
    algorithm = replace(agreement.algorithms[k], local_epochs=1)
    worker = InProcess({k: client}, {k: algorithm}, roster.task, seed, run.dtype, run.device).open([k])
    server = tree.cast(run.algorithm.init_server(roster.task, seed), run.dtype)
    downlink = run.algorithm.broadcast(server, list(range(roster.num_clients)))
    message = {name: value[k : k + 1] for name, value in downlink.items()}
    for round_index in (1, 2):  # the first one also warms up
        began = time.perf_counter()
        uplink, _ = worker.handle(Request(round_index, evaluate=False), message)
        seconds = time.perf_counter() - began
    peak = process_peak() / 2**20
    return {
        "epoch_seconds": seconds,
        "rounds": run.rounds.rounds,
        "bytes_up_per_round": tree.num_bytes(uplink),
        "bytes_down_per_round": tree.num_bytes(message),
        "fields_up": sorted(uplink),
        "memory_megabytes": round(peak + PARENT_MEGABYTES),
    }
