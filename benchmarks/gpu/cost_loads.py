"""How long an adapter takes from pinned host memory into its slot, and what that does to the steps beside it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from gpu.ceilings import pinned_bytes_s
from gpu.cost_engine import world_of
from gpu.images import digest_of
from gpu.log import Figure, Log
from gpu.machine import Machine
from gpu.sizes import Row, Sizes
from gpu.world import Adapter, Chat

_RANK = 16
_COPIES = 8
"""Of the image, enqueued beside one step, so that copying goes on to the step's end."""


def run(machine: Machine, sizes: Sizes, log: Log) -> None:
    count = min(8, sizes.engine_rows[-1].tokens)
    row = Row(_RANK, 2, rows=count, context=sizes.engine_rows[0].context)
    loads = _Loads(machine, sizes, row, log)
    with log.trying("load"):
        loads.alone()
    with log.trying("load in a step's plan"):
        loads.in_a_plan()
    with log.trying("load between steps"):
        loads.between()
    with log.trying("copies beside a step"):
        loads.beside()


class _Loads:
    """Adapter 0 serves all rows; adapter 1 comes and goes."""

    def __init__(self, machine: Machine, sizes: Sizes, row: Row, log: Log) -> None:
        self.machine, self.sizes, self.log = machine, sizes, log
        self.world = world_of(machine, sizes, [row])
        self.serving = self.world.load(digest_of("serving"), 0, lambda site, index: _RANK)
        self.world.step([])
        digest = digest_of("coming")
        image = self.world.maker.image(digest, lambda site, index: _RANK)
        host = image.pages.cpu()
        self.ceiling = pinned_bytes_s(machine, image.nbytes, sizes.rounds)
        self.image = replace(image, pages=host.pin_memory() if machine.device.type == "cuda" else host)
        self.world.images[digest] = self.image
        ids = [(17 * at) % 50 + 1 for at in range(row.context)]
        room = row.context + 2 * sizes.rounds + 4
        self.chats = [self.world.begin(ids, room, row.context - 1) for _ in range(row.tokens)]
        self.asked: list[tuple[Chat, Adapter | None, int]] = [(chat, self.serving, 1) for chat in self.chats]
        for _ in range(2):  # the first captures
            self.world.step(self.asked)
        self.coming: Adapter | None = None

    def _swap(self) -> None:
        if self.coming is not None:
            self.world.unload(self.coming)
        self.coming = self.world.load(self.image.digest, 1, lambda site, index: _RANK)

    def _seconds(self, asked: list[tuple[Chat, Adapter | None, int]], loads: bool) -> float:
        """Of one plan, from its submission to its results."""
        if loads:
            self._swap()
        plan = self.world.plan(asked)
        self.machine.sync()
        began = time.perf_counter()
        self.world.run(plan, asked)
        self.machine.sync()
        return time.perf_counter() - began

    def alone(self) -> None:
        """Its bytes are copied, summed up and compared, and its row published; from the second one on the one before is
        summed up and emptied too."""
        self._seconds([], True)
        taken = statistics.median(self._seconds([], True) for _ in range(self.sizes.loads))
        rate = self.image.nbytes / taken
        self.log.figure(
            Figure(
                f"load of {self.image.nbytes / 1e6:.0f} MB in {self.image.chunk_count} pages",
                taken * 1e3,
                "ms",
                f"a pinned copy's {self.ceiling / 1e9:.1f} GB/s",
                rate / self.ceiling,
                more={"GB_s": rate / 1e9},
            )
        )

    def in_a_plan(self) -> None:
        kinds = {"without": False, "with": True}
        taken: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(self.sizes.loads):
            self.log.watch()
            for kind, loads in kinds.items():
                taken[kind].append(self._seconds(self.asked, loads))
        without, beside = (statistics.median(taken[kind]) * 1e3 for kind in ("without", "with"))
        name = f"step of {len(self.chats)} rows whose plan loads one"
        self.log.figure(
            Figure(
                name, beside, "ms", f"the step alone, {without:.2f} ms", beside / without, more={"alone_ms": without}
            )
        )

    def between(self) -> None:
        """What the engine does: copies wait for the step before, and the step behind waits for them and their sums."""
        run, ran, waited, behind = self._captured_step(), [], [], []

        def load() -> None:
            assert self.coming is not None
            self.coming = self.world.load_at_once(self.coming)

        for _ in range(self.sizes.loads):
            self.log.watch()
            self.machine.sync()
            ran.append(self.machine.microseconds(run))
            run()
            waited.append(self.machine.microseconds(load))  # its clock begins where that step ends
            behind.append(self.machine.microseconds(run))
        alone, pause, after = (statistics.median(taken) for taken in (ran, waited, behind))
        rate = self.image.nbytes / pause * 1e6
        self.log.figure(
            Figure(
                "load of one between two captured steps: the second waits",
                pause / 1e3,
                "ms",
                f"a pinned copy's {self.ceiling / 1e9:.1f} GB/s",
                rate / self.ceiling,
                more={"GB_s": rate / 1e9, "of_a_step": pause / alone},
            )
        )
        name = "captured step right behind that load"
        self.log.figure(Figure(name, after / 1e3, "ms", f"alone, {alone / 1e3:.2f} ms", after / alone))

    def _captured_step(self) -> Callable[[], object]:
        return next(held.graph.run for (_, form), held in self.world.runner._captured.items() if form)

    def beside(self) -> None:
        """Not what the engine does, whose copies and steps wait for each other: what they would cost a step that they
        ran beside. Into memory that is nobody's."""
        run = self._captured_step()
        target = torch.empty_like(self.image.pages, device=self.machine.device)

        def copies() -> None:
            for _ in range(_COPIES):
                target.copy_(self.image.pages, non_blocking=True)

        def timed(before: Callable[[], None]) -> float:
            self.machine.sync()
            before()
            return self.machine.microseconds(run)

        alone, beside = [], []
        for _ in range(self.sizes.rounds):
            alone.append(timed(lambda: None))
            beside.append(timed(lambda: self.machine.aside(copies)))
        one, other = statistics.median(alone) / 1e3, statistics.median(beside) / 1e3
        name = "step beside copies of the same bytes (not what the engine does yet)"
        self.log.figure(Figure(name, other, "ms", f"alone, {one:.2f} ms", other / one))


__all__ = ["run"]
