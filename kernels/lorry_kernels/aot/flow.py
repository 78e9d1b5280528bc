"""Whose memory an access touches: addresses followed back through compiled code to the arguments they are made of.

Both assemblies (``ptx``, ``llir``) are read into the same few ``Step``s. A value that was loaded from memory carries no
argument: an offset read from a table does not make an address one of the table's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["compute", "load", "store", "share", "unshare"]

_SHARED = "<shared memory>"


@dataclass(frozen=True, slots=True)
class Step:
    """``compute``: writes from reads. ``load`` and ``store``: ``size`` bytes at an address made of ``reads``. ``share``
    puts reads into shared memory, ``unshare`` takes something out of it."""

    kind: Kind
    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    size: int = 0


@dataclass(frozen=True, slots=True)
class Access:
    """One instruction on global memory: bytes of one thread, and the pointer arguments in its address."""

    kind: Literal["load", "store"]
    size: int
    arguments: frozenset[str]


def trace(pointers: Mapping[str, str], steps: Iterable[Step]) -> tuple[Access, ...]:
    """Accesses in the code's order. ``pointers``: register -> the argument that it holds on entry."""
    program = tuple(steps)
    held: dict[str, frozenset[str]] = {register: frozenset((argument,)) for register, argument in pointers.items()}
    changed = True
    while changed:  # Loops carry addresses backwards; arguments are only ever added, so this ends.
        changed = False
        for step in program:
            if step.kind == "compute":
                found = _of(held, step.reads)
                targets: tuple[str, ...] = step.writes
            elif step.kind == "share":
                found, targets = _of(held, step.reads), (_SHARED,)
            elif step.kind == "unshare":
                found, targets = held.get(_SHARED, frozenset()), step.writes
            else:
                continue
            for target in targets:
                before = held.get(target, frozenset())
                if not found <= before:
                    held[target] = before | found
                    changed = True
    return tuple(
        Access("load" if step.kind == "load" else "store", step.size, _of(held, step.reads))
        for step in program
        if step.kind in ("load", "store")
    )


def _of(held: Mapping[str, frozenset[str]], registers: tuple[str, ...]) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    for register in registers:
        found |= held.get(register, frozenset())
    return found


__all__ = ["Access", "Kind", "Step", "trace"]
