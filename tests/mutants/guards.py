"""The guards that ``make mutants`` takes out, one at a time, and the tests that hold them."""

from __future__ import annotations

from tests.mutants import device, files, front, memory, names, texts
from tests.mutants.guard import Guard

GUARDS: tuple[Guard, ...] = (
    *files.GUARDS,
    *front.GUARDS,
    *names.GUARDS,
    *device.GUARDS,
    *memory.GUARDS,
    *texts.GUARDS,
)

__all__ = ["GUARDS", "Guard"]
