"""What is sent to a site: its kit as one zip file, with a page for its engineer."""

from __future__ import annotations

import zipfile
from pathlib import Path

from fedspray.deploy.agreement import Agreement
from fedspray.deploy.kits import Address

PAGE = """# {federation}: {site}

This folder makes your organisation a site of the federation "{federation}". Your data stay with you.
You need Linux, Python 3.11 or newer, and one outgoing TCP connection to {address}. No port is opened here.

1. Install fedspray {version} from the wheel and the `constraints.txt` that the coordinator sends:
   `pip install -c constraints.txt 'fedspray-{version}-py3-none-any.whl[deploy]'`
{key}2. Check, with the folder (or npz file) of your data: `fedspray site check . --data /path/to/data`
3. Start: `fedspray site start .` (for a service that survives reboots, see docs/deployment.md: systemd)
4. Look: `fedspray site status .`, and what left your building so far: `fedspray site ledger .`
5. Stop: `fedspray site stop .`

What will run is in `local/agreement.json`: {algorithm} with {backbone}, {rounds} rounds, {features} features and
{classes} classes per node, sites {sites}. Nothing else can be run here: jobs bring no code, and a job
for another agreement is refused.

What leaves: for each round the model parts and counts that `fedspray site check` lists. They reveal, among other
things, how many training nodes you have and how they are distributed over classes.

Yours alone: `local/site.json` (where your data are), `state/` (the last two rounds), `models/` (your personal
model, for `fedspray predict`), `ledger.jsonl`. Keep `startup/client.key` secret.
"""

KEY_STEP = (
    "   Then put the private key that you made with `fedspray site request` into `startup/client.key` (mode 600).\n"
)


def pack(kit: Path, target: Path, agreement: Agreement, address: Address) -> Path:
    """Writes a site's kit and its page into ``target``, readable by its owner alone."""
    settings, roster = agreement.settings, agreement.roster
    page = PAGE.format(
        federation=roster.name,
        site=kit.name,
        version=agreement.version,
        address=address,
        key="" if (kit / "startup" / "client.key").exists() else KEY_STEP,
        algorithm=settings.algorithm,
        backbone=settings.of_client(kit.name).backbone,
        rounds=settings.build_for(roster)[1].rounds,
        features=roster.task.num_features,
        classes=roster.task.num_classes,
        sites=", ".join(roster.clients),
    )
    (kit / "README.md").write_text(page)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.touch(mode=0o600)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(kit.rglob("*")):
            if file.is_file():
                archive.write(file, f"{roster.name}-{kit.name}/{file.relative_to(kit)}")
    return target
