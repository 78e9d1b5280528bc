"""The parts of the check, and one of them run in this process."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

from gpu.log import Found, Log


@dataclass(frozen=True, slots=True)
class Part:
    """``module`` has ``run(machine, sizes, log)``. ``seconds``: it ends by itself after them. ``proves``: it is about
    correctness, and must come to its end. ``together``: runs beside the others of its kind, since it times nothing."""

    name: str
    module: str
    seconds: float
    proves: bool = False
    together: bool = False


PARTS = (
    Part("lora", "gpu.check_lora", 160, proves=True, together=True),
    Part("attention", "gpu.check_attention", 160, proves=True, together=True),
    Part("fused", "gpu.check_fused", 160, proves=True, together=True),
    Part("sampling", "gpu.check_sampling", 160, proves=True, together=True),
    Part("replay", "gpu.check_replay", 160, proves=True, together=True),
    Part("cost-lora", "gpu.cost_lora", 90),
    Part("cost-attention", "gpu.cost_attention", 60),
    Part("engine", "gpu.cost_engine", 100),
    Part("loads", "gpu.cost_loads", 45),
)
"""Proofs at once, then figures one after the other: together less than eight minutes."""


def run_part(part: Part, seconds: float, *, toy: bool, path: Path | None = None) -> Found:
    """Whatever goes wrong is in what it answers."""
    log = Log(part.name, seconds, path, say=lambda text: print(text, flush=True))

    def body() -> None:
        from gpu.machine import Card, Interpreter
        from gpu.sizes import FULL, TOY

        module = importlib.import_module(part.module)
        module.run(Interpreter() if toy else Card(), TOY if toy else FULL, log)

    return log.run(body)


def passed(part: Part, found: Found) -> bool:
    """Nothing is wrong; a measurement may run out of its time once it has a figure."""
    measured = not part.proves and bool(found.figures)
    ended = found.state == "done" or (found.state == "out of time" and measured)
    return ended and not found.failed


__all__ = ["PARTS", "Part", "passed", "run_part"]
