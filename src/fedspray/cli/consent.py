"""``fedspray site runs``, ``accept`` and ``refuse``: a site's say about each run."""

from __future__ import annotations

from typing import Annotated

from rich.markup import escape

from fedspray.cli.flags import AsJson, argument, flag
from fedspray.cli.organisations import Kit, organisational
from fedspray.cli.output import Output

Reason = Annotated[str, flag("Why; the coordinator reads it.", "TEXT")]
RunName = Annotated[str, argument("The run's name: fedspray site runs lists them.", "RUN")]


def runs(kit: Kit, /, *, as_json: AsJson = False) -> None:
    """Show the runs that this site was asked to take part in, and what it answered."""
    from fedspray.deploy.site import consent, policy
    from fedspray.deploy.site.status import site_name

    output, name, found = Output(as_json), site_name(kit), consent.answers(kit)
    budget = policy.Policy.read(kit).epsilon
    for each in found:
        run = each["offer"]["run"]
        output.show(f"[bold]{run}[/bold]: {consent.told(each)}, asked at {each['asked']}")
        if each["answer"] is None:
            output.show(f"  waits for your answer ({escape(each['why'])}): fedspray site accept {kit} {run}")
        else:
            said = "accepted" if each["answer"] == "yes" else "refused"
            because = f": {escape(each['reason'])}" if each["reason"] else ""
            output.show(f"  {said} by the {each['by']} at {each['time']}{because}")
    if not found:
        output.show(f"{name} was not asked for any run yet")
    left = None if budget is None else max(0.0, budget - policy.spent(kit))
    if left is not None:
        output.show(f"ε left: {left:.3g} of {budget:g}")
    output.result({"site": name, "runs": found, "epsilon_left": left})


@organisational
def accept(kit: Kit, run: RunName, /) -> None:
    """Take part in a run that waits for an answer, or after a refusal."""
    from fedspray.deploy.site import consent
    from fedspray.deploy.site.status import site_name

    name = site_name(kit)
    consent.answer(kit, run, True)
    Output().note(f"{name} takes part in {run}")


@organisational
def refuse(kit: Kit, run: RunName, /, *, reason: Reason) -> None:
    """Take no part in a run; in one that is under way, from the next answer on."""
    from fedspray.deploy.site import consent
    from fedspray.deploy.site.status import site_name

    name = site_name(kit)
    consent.answer(kit, run, False, reason)
    Output().note(f"{name} takes no part in {run}")
