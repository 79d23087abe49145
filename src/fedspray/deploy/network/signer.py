"""Who may give a job to the server or a site: the coordinator that its agreement names, and nobody else.

NVFlare accepts a job that any member of the federation signed, a site too. It asks the class in this module before it
starts a job's process.
"""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.app_validation import AppValidator
from nvflare.lighter.tool_consts import NVFLARE_SUBMITTER_CRT_FILE
from nvflare.lighter.utils import load_crt_chain, verify_folder_signature

from fedspray import stored
from fedspray.deploy import kinds
from fedspray.deploy.network.guard import Guard
from fedspray.deploy.network.protocol import COORDINATOR, SERVER
from fedspray.deploy.provisioning.certificates import AUTHORITY, common_name, key_fingerprint
from fedspray.errors import InputError


def check_job_signer(app: Path, kit: Path) -> None:
    """Raises an `InputError` unless the coordinator that the kit's agreement names signed every file of a job."""
    agreed = stored.read(kit / "local" / "agreement.json", kinds.AgreementFile)  # without importing torch
    named = agreed.get("coordinator")
    if named is None:
        raise InputError(
            "the agreement names no coordinator, so no job can be trusted: "
            "agree again (fedspray deploy amend, fedspray site agree)"
        )
    if not verify_folder_signature(str(app), str(kit / "startup" / AUTHORITY)):
        raise InputError("the job is not signed, or changed after it was signed")
    for folder in (app, *(each for each in app.rglob("*") if each.is_dir())):
        certificate = load_crt_chain(folder / NVFLARE_SUBMITTER_CRT_FILE)[0]
        if key_fingerprint(certificate.public_key()) != named:
            signer = common_name(certificate.subject)
            raise InputError(
                f"the job is signed by {signer!r}, but only the coordinator of the agreement may give jobs"
            )


class CoordinatorsJobs(AppValidator):  # type: ignore[misc]
    """What NVFlare asks before it takes a job; a kit's ``local/resources.json`` names it."""

    def validate(self, app_folder: str) -> tuple[str, dict[str, bool]]:
        """The reason why a job in KIT/JOB/APP is refused, or an empty text."""
        app = Path(app_folder).resolve()
        try:
            check_job_signer(app, app.parents[1])
        except InputError as error:
            guard = Guard(app.parents[1])
            guard.record("refused", COORDINATOR if guard.is_server else SERVER, f"a job: {error}")
            return str(error), {}
        return "", {}
