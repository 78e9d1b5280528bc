"""Captured decode steps against eager ones and a float64 model, with adapters that come and go between replays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor

from gpu.bounds import UNIT
from gpu.images import RankOf, digest_of
from gpu.log import Log
from gpu.machine import Machine
from gpu.reference_model import ReferenceModel
from gpu.sizes import Sizes
from gpu.world import Adapter, Chat, World, key_of, random_tensors, spec_of
from lorry.engine.gpu import runner
from lorry.engine.gpu.forms import Form
from lorry.errors import SlotIntegrity
from lorry.ids import SequenceId
from lorry.layers.sites import LoraSite
from lorry.layers.slot_row import CHUNK_ROWS
from lorry.scheduler.plan import StepResult

_UNITS = 10.0
"""Units of rounding of the largest logit: a model of a few layers rounds a few dozen times, and errors add up as their
roots do. The bound is that of the whole model, its GEMMs included."""

_DRAW = "draw_on_device"

Rows = Sequence[tuple[int, str | None]]
"""(sequence, adapter's name) of a step's rows."""


def run(machine: Machine, sizes: Sizes, log: Log) -> None:
    with log.trying("replay"):
        _Replay(machine, sizes, log).run()


class _Side:
    """One runner and its adapters."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.loaded: dict[str, Adapter] = {}
        self.chats: list[Chat] = []

    def rows(self, rows: Rows, counts: Sequence[int] | None = None) -> list[tuple[Chat, Adapter | None, int]]:
        tokens = counts or [1] * len(rows)
        return [
            (self.chats[at], self.loaded[name] if name else None, count)
            for (at, name), count in zip(rows, tokens, strict=True)
        ]


class _Replay:
    """The same plans to a runner with graphs and one without, which hold the same bytes."""

    def __init__(self, machine: Machine, sizes: Sizes, log: Log) -> None:
        self.machine, self.log = machine, log
        self.dtype = machine.dtypes[0]
        self.spec = spec_of(sizes.small, sizes.small_layers, 256)
        self.tensors = random_tensors(self.spec, self.dtype, machine.device)
        self.ranks = [rank for rank in sizes.ranks if rank <= 64] or [16]
        heads = [rank for rank in self.ranks if rank > 16] or [16]
        self.head_rank = {"d": heads[0], "e": heads[-1]}
        self.sides = [self._side(graphs) for graphs in (True, False)]
        self._references: dict[tuple[str | None, bool], ReferenceModel] = {}

    def _side(self, graphs: bool) -> _Side:
        rank, spec = -(-max(self.ranks) // 16) * 16, self.spec
        head_bytes = rank * (spec.hidden + spec.vocabulary + CHUNK_ROWS) * self.dtype.itemsize
        world = World(
            self.machine,
            self.spec,
            self.dtype,
            slots=3,
            max_rank=rank,
            page_tokens=64,
            kv_tokens=4 * 256,
            adapters=4,
            max_sequences=4,
            extra_bytes=2 * head_bytes,
            graphs=graphs,
            deviation=(self.spec.hidden * 16) ** -0.25,
            tensors=dict(self.tensors),
        )
        return _Side(world)

    def run(self) -> None:
        """Two graphs of four rows all along, one of them for adapters with LoRA on the head. Sequences begin anew with
        their adapters: cached keys are theirs."""
        for name, slot in (("a", 0), ("b", 1)):
            self._load(name, slot)
        self._batch("as captured", ("a", "b", None, "a"), 2)
        self._swap("a", "c", 0)
        self._batch("a slot loaded anew", ("c", "b", None, "c"))
        self._swap("c", "d", 0)
        self._batch("LoRA on the head", ("d", "b", None, "d"))
        self._swap("d", None, 0)
        self._load("a", 2)
        self._batch("a slot emptied, another filled, a padded row", (None, "b", "a"))
        self._swap("a", "e", 2)
        self._batch("no adapters", (None, None, None, None))
        self._batch("another head in another slot", ("b", "e", "b", None))
        own = [bucket for bucket, form in self.sides[0].world.runner._captured if form == Form.OWN]
        self.log.equal("LoRA on the head runs in one graph", own == [4], f"of {own} rows")
        self._fault([(0, "b"), (1, "e"), (2, "b"), (3, None)], "b")

    def _batch(self, what: str, names: Sequence[str | None], replays: int = 1) -> None:
        """Prefill of fresh sequences, eager on both sides, then decode steps."""
        lengths = (5, 9, 3, 12)[: len(names)]
        for side in self.sides:
            side.world.end(*side.chats)
            prompts = [[(7 * i + 3 * at) % 60 + 1 for at in range(length)] for i, length in enumerate(lengths)]
            side.chats = [side.world.begin(prompt, 64) for prompt in prompts]
        rows = list(enumerate(names))
        self._step(f"{what}: prefill", rows, lengths)
        for number in range(replays):
            self._step(f"{what}: replay {number + 1}", rows)

    def _load(self, name: str, slot: int) -> None:
        for side in self.sides:
            side.loaded[name] = side.world.load(digest_of(name), slot, self._rank_of(name), self.head_rank.get(name, 0))

    def _swap(self, old: str, new: str | None, slot: int) -> None:
        for side in self.sides:
            side.world.unload(side.loaded.pop(old))
        if new is not None:
            self._load(new, slot)

    def _rank_of(self, name: str) -> RankOf:
        """Differs by adapter and module; some modules have nothing."""

        def rank(site: LoraSite, index: int) -> int:
            at = ord(name) + site.layer + index + len(site.slices)
            return 0 if at % 6 == 5 else self.ranks[at % len(self.ranks)]

        return rank

    def _step(self, what: str, rows: Rows, counts: Sequence[int] | None = None) -> None:
        """Both sides' logits against each other and against float64."""
        self.log.watch()
        before = [tuple(self._ids(0, at)) for at, _ in rows]
        found = [self._run(side, rows, counts) for side in self.sides]
        results = [result for result, _ in found]
        adapters = [[one.adapter for one in result.results] for result in results]
        clean = all(one.fault is None for result in results for one in result.results)
        named = [key_of(digest_of(name)) if name else None for _, name in sorted(rows, key=lambda row: row[0])]
        self.log.equal(f"{what}: provenance", adapters == [named, named] and clean, f"{adapters} for {named}")
        graph, eager = found[0][1], found[1][1]
        wanted = {
            at: self._reference(name).logits(self._prefix(0, at, known))
            for (at, name), known in zip(rows, before, strict=True)
        }
        bound = _UNITS * UNIT[self.dtype] * max(float(want.abs().max()) for want in wanted.values())
        worst = max(float((graph[at].double() - wanted[at]).abs().max()) for at in wanted)
        self.log.check(f"{what}: logits are float64's", worst / bound)
        apart = max(float((graph[at].double() - eager[at].double()).abs().max()) for at in wanted)
        self.log.check(f"{what}: graph = eager" + (", bit for bit" if apart == 0 else ""), apart / bound)
        for (at, name), known in zip(rows, before, strict=True):
            others = {} if name is None else {"the base": self._reference(None)}
            if name in self.head_rank:
                others["the same without its head"] = self._reference(name, head=False)
            for other, model in others.items():
                away = float((model.logits(self._prefix(0, at, known)) - wanted[at]).abs().max()) / bound
                self.log.equal(f"{what}: {name} is not {other}", away > 2, f"only {away:.1f} bounds away")
        for side in self.sides:  # Near ties may part the two: both go on with the first one's tokens.
            for at in wanted:
                chat, told = side.chats[at], self.sides[0].chats[at].outputs
                chat.outputs[:] = told
                side.world.runner._sequences[chat.number].ids[len(chat.ids) :] = told

    def _prefix(self, side: int, at: int, before: Sequence[int]) -> list[int]:
        chat = self.sides[side].chats[at]
        return [*chat.ids, *before][: chat.known]

    def _ids(self, side: int, at: int) -> list[int]:
        return self.sides[side].chats[at].outputs

    def _reference(self, name: str | None, head: bool = True) -> ReferenceModel:
        key = (name, head)
        if key not in self._references:
            world = self.sides[0].world
            image = world.images[digest_of(name)] if name else None
            if image is not None and not head:
                image = replace(image, extras=None)
            self._references[key] = ReferenceModel(self.spec, self.tensors, world.maker, image)
        return self._references[key]

    def _run(self, side: _Side, rows: Rows, counts: Sequence[int] | None) -> tuple[StepResult, dict[int, Tensor]]:
        with _recorded() as logits:
            result = side.world.step(side.rows(rows, counts))
        self.machine.sync()
        numbers = {chat.number: at for at, chat in enumerate(side.chats)}
        ordered = tuple(sorted(result.results, key=lambda one: numbers[one.sequence]))
        return StepResult(result.step, ordered, result.seconds), {numbers[one]: row for one, row in logits.items()}

    def _fault(self, rows: Rows, name: str) -> None:
        """What the host believes is loaded, the device holds no more: its rows end, no other notices."""
        for side, kind in zip(self.sides, ("graph", "eager"), strict=True):
            generation = side.world.adapters.tables.generation
            slot = side.loaded[name].slot
            held = generation[slot].clone()
            generation[slot] += 1
            result, _ = self._run(side, rows, None)
            generation[slot] = held
            faults = {at: one.fault for (at, _), one in zip(sorted(rows), result.results, strict=True)}
            want = {at: SlotIntegrity.reason if own == name else None for at, own in rows}
            self.log.equal(f"{kind}: another generation on the device ends its rows alone", faults == want, f"{faults}")


@contextmanager
def _recorded() -> Iterator[dict[SequenceId, Tensor]]:
    """Meanwhile, the logits that each sequence's token is drawn from."""
    found: dict[SequenceId, Tensor] = {}
    draw = getattr(runner, _DRAW)

    def recording(steps: Sequence[Any], sequences: Any, logits: Tensor) -> Any:
        for row, step in enumerate(steps):
            found[step.sequence] = logits[row].clone()
        return draw(steps, sequences, logits)

    setattr(runner, _DRAW, recording)
    try:
        yield found
    finally:
        setattr(runner, _DRAW, draw)


__all__ = ["run"]
