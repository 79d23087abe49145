"""One deployed run at one site, without any network: worker, links, memories on disk, personal model.

::

    KIT/state/RUN/seed-0/memory-R.safetensors   the ends of the last two rounds, and the hash of the data
    KIT/models/RUN/seed-0/                      the personal model, for `fedspray predict`
    KIT/models/RUN/seed-0.benefit.json          whether federating helped this site, where that is known
    KIT/models/RUN/seed-0.figures.json          with secure-sum or dp: this site's test figures, which nobody else has
    KIT/state/RUN/seed-0/released.json          with secure-sum: for which lists of sites each round was opened
    KIT/state/RUN/seed-0/secret.json            with links that add noise: what it is drawn from
    KIT/state/RUN/seed-0/answered.json          with dp: the hash of the message that each round was answered for
    KIT/state/RUN/consent.json                  whether this site takes part: see `fedspray.deploy.site.consent`
    KIT/state/RUN/peers.json                    with secure-sum: fingerprints of the other sites' keys
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from fedspray import files, stored
from fedspray.deploy import kinds
from fedspray.deploy.agreement import Refused, check_name
from fedspray.deploy.locks import Lock
from fedspray.deploy.messages.schema import MessageSchema, difference
from fedspray.deploy.messages.wire import CONSENT, SUM, Ask, Reply, freeze, hold
from fedspray.deploy.site import consent
from fedspray.deploy.site.identity import CertificateIdentity
from fedspray.deploy.site.kit import Site
from fedspray.deploy.site.policy import Offer
from fedspray.engine.crossing import ClientEnd, trip_of
from fedspray.engine.layouts import layout_of
from fedspray.engine.local import InProcess
from fedspray.engine.member import Member
from fedspray.engine.secure import STEPS
from fedspray.engine.sums import Party
from fedspray.engine.worker import Worker
from fedspray.evaluation.counting import blank
from fedspray.evaluation.metrics import Counts
from fedspray.files import Json
from fedspray.links.secure_sum import SecureSum
from fedspray.nn import tree
from fedspray.nn.tree import Message
from fedspray.runs import benefit, store
from fedspray.runs.models import PersonalModel

RELEASED, PEERS, SECRET, ANSWERED = "released.json", "peers.json", "secret.json", "answered.json"
LOOK_EVERY = 0.5
"""Seconds between looks for a person's answer."""


class SiteRun:
    """One run at one site; a new process goes on where the last one stopped.

    Args:
        site: whose.
        run: the run's name, which the server chose.
        agreement: fingerprint of what the server thinks was agreed.
    """

    def __init__(self, site: Site, run: str, agreement: str) -> None:
        own = site.agreement()
        if agreement != own.fingerprint():
            agreed = own.fingerprint()[:12]
            raise Refused(f"the job is for agreement {agreement[:12]}, but {site.name} agreed to {agreed}")
        self._site, self._run, self._agreement = site, check_name("run", run), own
        self._id = own.roster.clients.index(site.name)
        self._rounds = own.resolved.rounds.rounds
        self._state = site.folder / "state" / run
        self._lock = Lock(self._state / "lock")
        self._lock.take_over()
        torch.set_num_threads(site.threads)
        self._seed: int | None = None
        self._worker: Worker | None = None
        self._data = ""
        self._schema: str | None = None
        self._algorithm = own.algorithms[self._id]
        self._links: ClientEnd | None = None
        self._party: Party | None = None
        self._hides_evaluation = any(link.hides_evaluation for link in own.resolved.links)
        self._hides_clients = self._hides_evaluation or own.secure_sum is not None
        links = bool(own.resolved.links)
        schema = MessageSchema.of(self._algorithm, own.roster.task, own.resolved.dtype, links=links)
        self._message_schema, self._downlink = schema, schema.downlink
        self._entries: list[Json] | None = own.entries()
        """What leaves, field by field, until the ledger has it."""
        self.most_bytes = schema.most_bytes("downlink") + own.protocol_bytes
        """A larger message is none of this run's."""
        self._offer = self._offered()

    def answer(self, ask: Ask, stopped: Callable[[], bool] = lambda: True) -> Reply:
        """Does what is asked and remembers it; refuses what is not part of the agreed run.

        Whether this site takes part is waited for, but not for ever, and not once the job is ``stopped``.
        """
        if ask.step == CONSENT:
            deadline = time.monotonic() + hold(ask.turn)
            while not (consented := self._consented()) and time.monotonic() < deadline and not stopped():
                time.sleep(LOOK_EVERY)
            return Reply(undecided=not consented)
        if not self._consented():
            raise Refused(f"{self._site.name} has not agreed to this run yet")
        self._check(ask)
        worker = self._worker_for(ask.seed)
        if self._party is not None and ask.step != SUM:
            return Reply(self._party.handle(str(ask.step), ask.guard))
        request, message = ask.request, ask.message
        if request.train and self._agreement.resolved.spent(request.round_index):
            self._answer_once(ask)
        if self._links is not None and not request.detail:
            message = self._received(message, request.round_index)
        wanted = () if request.detail else self._downlink
        if layout_of(message) != wanted:
            raise Refused(f"the message is not the algorithm's: {difference(layout_of(message), wanted)}")
        uplink, counts = worker.handle(request, message)
        if request.detail and counts and self._hides_clients:
            (own,) = Counts.from_message(counts).part("test").by_client()
            files.write_json(self._models / f"seed-{ask.seed}.figures.json", own)
        if self._hides_evaluation:
            counts = blank(counts)
        if self._links is not None and uplink:
            uplink = self._links.send(uplink, request.round_index, request.last_known)
        self._remember(ask.seed, worker)
        model = self._keep_model(ask.seed, worker) if ask.request.detail else None
        if self._hides_evaluation:
            model = None  # ε does not cover what is computed from the model exactly, not even its hash
        if self._party is not None:
            uplink, counts = self._masked(self._party, worker, ask, uplink, counts), {}
        return Reply(uplink, counts, trained=ask.request.train, model=model)

    def _masked(self, party: Party, worker: Worker, ask: Ask, uplink: Message, counts: Message) -> Message:
        """What leaves where the server sees sums only."""
        link, request = self._agreement.secure_sum, ask.request
        assert link is not None
        train = ask.guard["trainers"].numel() > 0
        layout = self._message_schema.sums(link, self._agreement.roster.num_clients, request, train=train)
        best = worker.count_best() if request.evaluate and not self._hides_evaluation else {}
        return party.masked(layout, ask.guard, request, uplink, counts, best)

    def takes_part(self) -> bool:
        """Whether this site has agreed to the run, and not taken it back."""
        return bool(consent.ask(self._site.folder, self._offer)["answer"] == "yes")

    def _consented(self) -> bool:
        found = consent.ask(self._site.folder, self._offer)
        if found["answer"] == "no":
            because = f": {found['reason']}" if found["reason"] else ""
            raise Refused(f"{self._site.name} refused this run{because}")
        return bool(found["answer"] == "yes")

    def _offered(self) -> Offer:
        run, seeds = self._agreement.resolved, len(self._agreement.settings.seeds)
        largest = self._message_schema.most_bytes("uplink", "counts", "detail") + self._agreement.protocol_bytes
        privacy = run.spent(self._rounds).get("privacy")
        return Offer(
            self._run,
            self._agreement.fingerprint(),
            self._agreement.settings.algorithm,
            seeds * self._rounds,
            seeds * (self._rounds + 2) * largest,
            None if privacy is None else seeds * privacy["epsilon"],
        )

    def told(self, ask: Ask) -> Json:
        """What the ledger says of an update beside its fields: the privacy spent and, once, what each field reveals."""
        entries, self._entries = self._entries, None
        leaves = {} if entries is None else {"leaves": entries, "server_gets": self._agreement.leaves()}
        return {**leaves, **self._agreement.resolved.spent(ask.request.round_index)}

    def _received(self, message: Message, round_index: int) -> Message:
        assert self._links is not None
        try:
            return self._links.receive(message, round_index)
        except Exception as error:  # whatever the server sends
            raise Refused(f"the message cannot be opened ({type(error).__name__})") from error

    @property
    def _models(self) -> Path:
        folder = self._site.folder / "models" / self._run
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def close(self) -> None:
        """Lets another process go on."""
        self._lock.release()

    def _check(self, ask: Ask) -> None:
        """Only rounds that were agreed on, and the report only after the last."""
        request, rounds, last = ask.request, self._rounds, self._rounds + 2
        patience = self._agreement.resolved.rounds.patience
        earliest = min(last, patience + 4) if patience else last
        steps = (None,) if self._agreement.secure_sum is None else (SUM, *STEPS)
        if ask.step not in steps:
            raise Refused(f"step {ask.step!r} is asked for, but the agreement has {steps}")
        if not 1 <= request.round_index <= last:
            raise Refused(f"round {request.round_index} is asked for, but {rounds} rounds are agreed")
        if request.train and request.round_index > rounds:
            raise Refused(f"training is asked for in round {request.round_index}, but {rounds} rounds are agreed")
        early = request.detail and (request.round_index < earliest or request.evaluate)
        if early or (request.round_index == last and not request.detail):
            raise Refused(f"the report is asked for in round {request.round_index}, but it comes after the last one")
        if request.from_round is not None and not 0 <= request.from_round < request.round_index:
            raise Refused(f"round {request.round_index} is to go on from round {request.from_round}, but it cannot")

    def _worker_for(self, seed: int) -> Worker:
        if self._worker is not None and self._seed == seed:
            return self._worker
        if seed not in self._agreement.settings.seeds:
            raise Refused(f"seed {seed} is not in the agreement, whose seeds are {self._agreement.settings.seeds}")
        client = self._site.client(self._agreement, seed)
        run, task, k = self._agreement.resolved, self._agreement.roster.task, self._id
        worker = InProcess({k: client}, {k: self._algorithm}, task, seed, run.dtype, run.device).open([k])
        data = client.fingerprint()
        stored = [store.read_tensors(file) for file in sorted(self._folder(seed).glob("memory-*.safetensors"))]
        if any(meta.get("data", data) != data for _, meta in stored):  # memories of older versions do not say
            raise Refused(
                f"the data of {self._site.name} are not those that {self._run} began with: "
                "put these back, or begin a new run"
            )
        chain = [link for link in run.links if not link.only_sums]
        if chain:
            trip = trip_of(self._algorithm, task, seed, run.dtype)
            own = replace(trip, client_id=k, secret=self._secret(seed), columns=worker.columns[0])
            self._links = ClientEnd(chain, own)
        if self._agreement.secure_sum is not None:
            self._party = self._party_of(self._agreement.secure_sum, seed, worker.batch.train_class_counts[0])
        if stored:
            worker.recall({meta["round"]: tensors for tensors, meta in stored})
            if self._links is not None:
                self._links.recall({meta["round"]: tree.part_of(tensors, "links") for tensors, meta in stored})
        self._worker, self._seed, self._data, self._schema = worker, seed, data, client.graph.schema
        return worker

    def _party_of(self, link: SecureSum, seed: int, classes: Tensor) -> Party:
        """This site's side of secure sums; for which lists it gave shares survives a restart, its keys do not."""
        file, sites = self._folder(seed) / RELEASED, self._agreement.roster.clients
        released = stored.read(file, kinds.Released) if file.exists() else {}
        identity = CertificateIdentity(self._site.folder, sites)

        def keep() -> None:
            files.write_json(file, released)
            files.write_json(self._state / PEERS, identity.peers)

        context = f"{self._agreement.fingerprint()} {self._run} {seed}"
        return Party(Member(self._id, link, identity, context, released, keep), classes, len(sites))

    def _secret(self, seed: int) -> int:
        """What this site's noise is drawn from: a round that is asked for again has the same noise."""
        file = self._folder(seed) / SECRET
        if not file.exists():
            with files.private_files():
                files.write_json(file, {"secret": secrets.randbits(128)})
        return int(stored.read(file, kinds.Secret)["secret"])

    def _answer_once(self, ask: Ask) -> None:
        """Where privacy is counted, a round is answered for one message: its noise is the same each time it is asked.

        Two answers with the same noise would differ by the data alone.
        """
        file, request = self._folder(ask.seed) / ANSWERED, ask.request
        answered = stored.read(file, kinds.Answered) if file.exists() else {}
        content = freeze(replace(ask, guard={}).pack()[1])
        digest = sha256(f"{request.last_known} ".encode() + content).hexdigest()
        if answered.setdefault(str(request.round_index), digest) != digest:
            raise Refused(
                f"{self._site.name} has answered round {request.round_index} for another message, "
                "and a second answer would spend more privacy than was agreed"
            )
        files.write_json(file, answered)

    def _folder(self, seed: int) -> Path:
        folder = self._state / f"seed-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _remember(self, seed: int, worker: Worker) -> None:
        """Writes what is new and removes what is too old, in this order."""
        folder = self._folder(seed)
        wanted = {round_index: folder / f"memory-{round_index}.safetensors" for round_index in worker.rounds}
        for round_index, file in wanted.items():
            if round_index == worker.rounds[-1] or not file.exists():
                links = {} if self._links is None else tree.prefixed("links", self._links.tensors(round_index))
                meta = {"round": round_index, "data": self._data}
                store.write_tensors(file, worker.tensors(round_index) | links, meta)
        for file in set(folder.glob("memory-*.safetensors")) - set(wanted.values()):
            file.unlink()

    def _keep_model(self, seed: int, worker: Worker) -> str | None:
        (snapshot,) = worker.personal_models()
        if snapshot is None:
            return None
        settings = self._agreement.settings.of_client(self._site.name)
        task = replace(self._agreement.roster.task, schema=self._schema)
        model = PersonalModel(self._site.name, self._id, worker.algorithm, task, snapshot, settings)
        data = self._site.client(self._agreement, seed)
        folder = self._models
        model.described(data, self._agreement.roster.name).save(folder / f"seed-{seed}")
        counts = benefit.counted(data, model)
        if counts is not None:
            found = benefit.of_client([counts])
            said = None if found["all"] is None else benefit.sentence(self._site.name, found)
            files.write_sealed(folder / f"seed-{seed}.benefit.json", {**found, "said": said})
        return model.digest()
