"""FLOPs and bytes in readable units."""

from __future__ import annotations


def in_flops(count: float) -> str:
    """A number of FLOPs in three digits: 1.90 MFLOP."""
    return _scaled(count, 1000.0, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"))


def in_bytes(count: float) -> str:
    """A number of bytes in three digits: 12.5 MiB."""
    return _scaled(count, 1024.0, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def _scaled(count: float, step: float, units: tuple[str, ...]) -> str:
    unit = 0
    while count >= 999.5 and unit < len(units) - 1:
        count, unit = count / step, unit + 1
    if unit == 0 and count == int(count):
        return f"{count:.0f} {units[0]}"
    return f"{count:.{2 if count < 9.995 else 1 if count < 99.95 else 0}f} {units[unit]}"
