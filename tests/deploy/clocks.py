"""Clocks that are wrong."""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo


def clock(days: float) -> type[datetime]:
    """A class to put in `datetime`'s place: its clock is some days ahead."""

    class Wrong(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Wrong:
            then = datetime.now(tz) + timedelta(days=days)
            return cls.combine(then.date(), then.timetz())

    return Wrong
