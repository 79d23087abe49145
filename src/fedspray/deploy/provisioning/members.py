"""Who is let in: the server's list of its sites, with the key that each proves itself with.

::

    PROJECT/kits/server/local/members.json    by site: `key`, sha256 of its public key; `disabled`; `left`

A running server follows every change of this file at once. A certificate for a key that is not in it is of no use,
so a new key for a site takes the old one's place.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fedspray import files, stored
from fedspray.deploy import kinds

FILE = "members.json"


@dataclass(frozen=True)
class Member:
    """A site, as the server knows it."""

    key: str | None = None
    """None: no certificate has been signed for it yet."""
    disabled: bool = False
    left: bool = False
    """Removed for good: runs go on without it."""


def read(kit: Path) -> dict[str, Member]:
    """The sites that are on a server's list."""
    file = kit / "local" / FILE
    content = stored.read(file, kinds.Members, "a server's start-up kit") if file.exists() else {}
    return {site: Member(**entry) for site, entry in content.items()}


def put_key(kit: Path, site: str, key: str) -> None:
    """From now on a site proves itself with this key, and with no other."""
    _put(kit, site, replace(read(kit).get(site, Member()), key=key))


def set_disabled(kit: Path, site: str, disabled: bool) -> bool:
    """Cuts a site off, or lets it in again; returns whether this changed anything."""
    before = read(kit).get(site, Member())
    _put(kit, site, replace(before, disabled=disabled))
    return before.disabled != disabled


def set_left(kit: Path, site: str, left: bool) -> bool:
    """Removes a site for good, with its key, or lets it come back with a new one; returns whether this changed any."""
    before = read(kit).get(site, Member())
    _put(kit, site, Member(left=left))
    return before.left != left


def left(kit: Path) -> frozenset[str]:
    """The sites that were removed."""
    return frozenset(site for site, member in read(kit).items() if member.left)


def shut_out(kit: Path) -> frozenset[str]:
    """The sites that were removed or disabled."""
    return frozenset(site for site, member in read(kit).items() if member.left or member.disabled)


def _put(kit: Path, site: str, member: Member) -> None:
    entries = {**read(kit), site: member}
    files.write_json(kit / "local" / FILE, {name: asdict(entry) for name, entry in entries.items()})
