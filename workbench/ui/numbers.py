"""How figures are written on the page: one rule for each kind of number. A missing value is "–", never 0."""

from __future__ import annotations

from typing import Final

MISSING: Final = "–"


def count(value: int | None) -> str:
    """A whole number with thousands separators: `2,048`."""
    return MISSING if value is None else f"{value:,}"


def milliseconds(seconds: float | None) -> str:
    """A duration given in seconds: `38.1 ms`, `412 ms`, `1,117 ms`, from 10,000 ms on `12.3 s`."""
    if seconds is None:
        return MISSING
    value = seconds * 1000
    if value >= 9_999.5:
        return f"{seconds:,.1f} s"
    return f"{value:,.0f} ms" if value >= 99.95 else f"{value:.1f} ms"


def rate(per_second: float | None) -> str:
    """Tokens per second with one decimal: `24.6`."""
    return MISSING if per_second is None else f"{per_second:,.1f}"


def percent(part: int | None, whole: int | None, decimals: int = 1) -> str:
    """A share in percent, `66.2 %`; missing when the whole is 0."""
    if part is None or not whole:
        return MISSING
    return f"{100 * part / whole:.{decimals}f} %"


def megabytes(num_bytes: int | None) -> str:
    """Bytes in MB (10^6), for weights and files: `61 MB`."""
    return MISSING if num_bytes is None else f"{num_bytes / 1e6:,.0f} MB"
