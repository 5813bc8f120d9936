"""Numbers, times and names as people read them."""

from __future__ import annotations

import datetime as dt
import math

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")


def number(value: float | None, digits: int = 4) -> str:
    """A number with at most that many significant digits and thousands set apart; a dash for none."""
    if value is None:
        return "–"
    if isinstance(value, int) or (math.isfinite(value) and value == int(value) and abs(value) < 1e15):
        return f"{int(value):,}".replace(",", "\u202f")
    if not math.isfinite(value):
        return str(value)
    if 1e-3 <= abs(value) < 1e6:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{decimals}f}"
        return (text.rstrip("0") if "." in text else text).replace(",", "\u202f").replace("-", "−")
    return f"{value:.{max(0, digits - 2)}e}".replace("-", "−")


def signed(value: float, digits: int = 3) -> str:
    """A number that always shows its sign."""
    return ("+" if value >= 0 else "") + number(value, digits)


def percent(ratio: float, decimals: int = 0) -> str:
    """A share in percent."""
    return f"{100 * ratio:.{decimals}f}\u202f%".replace("-", "−")


def size(num_bytes: float) -> str:
    """A number of bytes in binary units."""
    power = min(len(_BINARY) - 1, int(math.log(max(num_bytes, 1), 1024)))
    return f"{num_bytes / 1024**power:.{0 if power == 0 else 1}f}\u202f{_BINARY[power]}"


def duration(seconds: float) -> str:
    """Seconds as `42 s`, `3 min 20 s` or `2 h 05 min`."""
    whole = round(seconds)
    hours, minutes, left = whole // 3600, whole % 3600 // 60, whole % 60
    if hours:
        return f"{hours}\u202fh {minutes:02d}\u202fmin"
    if minutes:
        return f"{minutes}\u202fmin {left:02d}\u202fs"
    return f"{left}\u202fs" if whole >= 1 else f"{seconds:.1f}\u202fs"


def moment(iso: str) -> str:
    """An ISO 8601 time as `2026-11-30 10:05 UTC`."""
    return dt.datetime.fromisoformat(iso).astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M UTC")


def seconds_between(start: str, end: str) -> float:
    """Seconds from one ISO 8601 time to another."""
    return (dt.datetime.fromisoformat(end) - dt.datetime.fromisoformat(start)).total_seconds()


def short(digest: str | None) -> str:
    """The first digits of a hash, enough to tell it from others on one page."""
    return digest[:10] if digest else "–"
