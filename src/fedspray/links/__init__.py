"""Links: steps between clients and server, one file each; `make` builds one from ``"name setting=value …"``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from fedspray import plugins
from fedspray.errors import InputError, unknown
from fedspray.knob import kind_of, parse
from fedspray.links.base import Link
from fedspray.messages import Declared


def find(name: str) -> type[Link]:
    """The class of the link called ``name``, or ``package.module:Class``."""
    return plugins.load_class(__name__, "link", name, Link)


def names() -> list[str]:
    """The built-in links."""
    return plugins.names(__name__)


def make(text: str) -> Link:
    """A link from its name and settings, as in ``"noise sigma=0.1 clip=1"``."""
    name, *words = text.split() or [""]
    found = find(name)
    kinds = {each.name: kind_of(each) for each in fields(found)}
    values = {}
    for word in words:
        setting, equals, value = word.partition("=")
        if not equals:
            raise InputError(f"link {text!r}: {word!r} is not a setting: write NAME=VALUE after the link's name")
        if setting not in kinds:
            raise unknown(f"setting of the link {name}", setting, kinds)
        values[setting] = parse(setting, value, kinds[setting])
    return found(**values)


def chain(texts: Iterable[str], declared: Declared) -> tuple[Link, ...]:
    """Several links in the order in which a message passes them on its way up; refuses incompatible ones."""
    names = list(texts)
    made = tuple(make(text) for text in names)
    for link in made:
        link.check(declared)
    for place, link in enumerate(made):
        if link.only_sums:
            _check_sums([text.split()[0] for text in names], made, place)
    return made


def _check_sums(names: list[str], links: tuple[Link, ...], place: int) -> None:
    """A link that only adds comes last, and not after one that the server must undo client by client."""
    if place + 1 < len(links):
        raise InputError(f"{names[place]} must be the last link, but {names[place + 1]} comes after it")
    for name, link in zip(names[:place], links, strict=False):
        if type(link).combine is not Link.combine:
            raise InputError(
                f"{names[place]} gives the server sums, but {name} compares clients: leave one of them out"
            )
        if type(link).at_server is not Link.at_server:
            raise InputError(
                f"{names[place]} cannot be combined with {name}: the server must decode {name} client by "
                "client, but would see only sums"
            )
