"""Runs a StepPlan on a device with a page arena: decode steps as captured graphs, all others eagerly."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from lorry.adapters.image.packed import PackedImage
from lorry.engine.gpu.adapters import DeviceAdapters, DeviceSlot
from lorry.engine.gpu.block_tables import BlockTableMirror, packed, upload
from lorry.engine.gpu.buckets import bucket_of
from lorry.engine.gpu.graphs import Graph, Graphs
from lorry.engine.gpu.inputs import (
    IDS,
    PLACE,
    POSITIONS,
    TABLE_ROW,
    DecodeInputs,
    DeviceShape,
    decode_workspace,
    prefill_rows,
)
from lorry.engine.gpu.inputs import padding as padding_row
from lorry.engine.gpu.pages import PageMap
from lorry.engine.gpu.sampler import Draws, draw_on_device, warm_draws
from lorry.engine.plan_runner import PlanRunner, Results
from lorry.engine.sampler import Drawn, score_prompt
from lorry.errors import NonFiniteLogits, SlotIntegrity
from lorry.ids import BASE_SLOT, AdapterDigest, PageId, SequenceId
from lorry.layers.adapted import ExtraRows, extra_rows
from lorry.layers.extras import AdapterExtras
from lorry.models.paged import OwnRows, PagedBatch, PagedDecoder
from lorry.models.site_lora import Workspaces
from lorry.request import TokenLogprobs
from lorry.scheduler.plan import SequenceResult, SequenceStep


@dataclass(frozen=True, slots=True)
class _Captured:
    inputs: DecodeInputs
    graph: Graph


@dataclass(frozen=True, slots=True)
class Device:
    """What a runner works on; all of one device."""

    shape: DeviceShape
    decoder: PagedDecoder
    pages: PageMap
    tables: BlockTableMirror
    adapters: DeviceAdapters


class PagedRunner(PlanRunner[DeviceSlot]):
    """``buckets``: numbers of decode rows that are captured, ascending; without ``graphs`` nothing is."""

    def __init__(
        self,
        device: Device,
        image: Callable[[AdapterDigest], PackedImage | None],
        discard: Callable[[AdapterDigest], None] = lambda digest: None,
        clock: Callable[[], float] = time.monotonic,
        graphs: Graphs | None = None,
        buckets: Sequence[int] = (),
        max_tokens: int = 2048,
    ) -> None:
        super().__init__(device.adapters, device.decoder.spec.vocabulary, image, discard, clock)
        self._device = device
        self._decoder = device.decoder
        self._graphs = graphs
        self._buckets = tuple(buckets)
        self._captured: dict[tuple[int, bool], _Captured] = {}
        rows = self._buckets[-1] if self._buckets else device.tables.nobody
        self._workspaces: Workspaces = device.decoder.workspaces(rows, max_tokens)
        self._splits = decode_workspace(device.shape, rows)
        self._logits: Tensor | None = None

    def _forget(self, sequences: Sequence[SequenceId]) -> None:
        self._device.tables.drop(sequences)

    def _release_pages(self, pages: Sequence[PageId]) -> None:
        self._device.pages.release_pages(pages)

    @torch.inference_mode()
    def capture(self) -> None:
        """Every bucket, with adapters and without, and what eager steps launch: part of warming up, on the thread that
        will run the steps. Largest first, so that the others share its memory."""
        device = self._device.shape.device
        if device.type == "cuda":
            torch.cuda.set_device(device)  # of this thread: Triton launches there
        for rows in reversed(self._buckets):
            for lora in (False, True):
                self._capture(rows, lora)
        self._warm_eager()

    def _warm_eager(self) -> None:
        """A mixed step with adapters, of rows that nobody reads, and every way to draw: kernels are compiled here, not
        while requests wait."""
        nobody = self._device.tables.nobody
        inputs = upload(packed([padding_row(nobody)] * 3).t().contiguous(), self._device.shape.device)
        batch = self._batch(inputs, 1, [(2, 2, nobody)], lora=True)
        hidden = self._decoder.hidden(batch, self._workspaces)
        warm_draws(self._decoder.logits(hidden, batch.slot))

    def _capture(self, rows: int, lora: bool) -> _Captured | None:
        if self._graphs is None:
            return None
        key = (rows, lora)
        found = self._captured.get(key)
        if found is None:
            if self._logits is None:
                size, device = (self._buckets[-1], self._vocabulary), self._device.shape.device
                self._logits = torch.empty(size, dtype=torch.float32, device=device)
            inputs = DecodeInputs(self._device.shape, rows, lora, self._splits)
            nobody = padding_row(self._device.tables.nobody)
            inputs.packed.copy_(packed([nobody] * rows).t())
            found = self._captured[key] = _Captured(inputs, self._graphs.capture(lambda: self._decode(inputs)))
        return found

    def _decode(self, inputs: DecodeInputs) -> tuple[Tensor, ...]:
        """Logits ``[rows, V]`` and faults of decode rows, from static buffers alone. All graphs answer in one buffer:
        a hundred of them with one each would keep gigabytes."""
        assert self._logits is not None
        decode = inputs.prepare(self._device.tables.table, self._device.adapters.tables.generation)
        slot = None if decode.routing is None else decode.routing.slot
        ids, positions, place = (inputs.packed[row] for row in (IDS, POSITIONS, PLACE))
        batch = PagedBatch(ids, positions, place, slot, decode, None)
        logits = self._logits[: inputs.packed.shape[1]]
        logits.copy_(self._decoder.logits(self._decoder.hidden(batch, self._workspaces), slot))
        return (logits,) if inputs.fault is None else (logits, inputs.fault)

    @torch.inference_mode()
    def _run(self, steps: list[SequenceStep]) -> Results:
        ordered = sorted(steps, key=lambda step: step.query_len > 1)
        rows = [row for step in ordered for row in self._rows(step)]
        self._device.tables.flush()
        entries = [self._entry(step) for step in ordered]
        lora = any(entry is not None for entry in entries)
        special = any(entry is not None and entry.special for entry in entries)
        bucket = bucket_of(self._buckets, len(rows))
        plain = ordered[-1].query_len == 1 and not special and not any(step.score_rows for step in ordered)
        captured = self._capture(bucket, lora) if plain and bucket is not None else None
        if captured is not None:
            return self._replay(captured, ordered, rows)
        return self._eager(ordered, rows, lora)

    def _rows(self, step: SequenceStep) -> list[tuple[int, ...]]:
        """A packed input row for each query token."""
        state, page = self._sequences[step.sequence], self._device.shape.page_tokens
        stop = step.start + step.query_len
        table_row = self._device.tables.row(step.sequence, step.block_table)
        found: list[tuple[int, ...]] = []
        for position in range(step.start, stop):
            at = position // page
            place = -1
            if at >= step.shared_pages:
                place = self._device.pages.page(step.block_table[at]) * page + position % page
            slot = -1 if step.slot == BASE_SLOT else step.slot
            token = state.ids[position]
            found.append((token, position, place, slot, step.generation, table_row, position + 1))
        return found

    def _replay(self, captured: _Captured, steps: list[SequenceStep], rows: list[tuple[int, ...]]) -> Results:
        inputs = captured.inputs
        empty = inputs.packed.shape[1] - len(rows)
        padded = [*rows, *[padding_row(self._device.tables.nobody)] * empty]
        inputs.packed.copy_(upload(packed(padded).t().contiguous(), self._device.shape.device), non_blocking=True)
        logits, *fault = captured.graph.run()
        # One token may be a prefill chunk that is not its prompt's last.
        drawn = [row for row, step in enumerate(steps) if step.logit_rows]
        found = logits[: len(steps)]
        if len(drawn) < len(steps):
            found = found.index_select(0, upload(torch.tensor(drawn, dtype=torch.int64), found.device))
        draws = draw_on_device([steps[row] for row in drawn], self._sequences, found)
        return self._results(steps, draws, fault[0] if fault else None, {})

    def _eager(self, steps: list[SequenceStep], rows: list[tuple[int, ...]], lora: bool) -> Results:
        inputs = upload(packed(rows).t().contiguous(), self._device.shape.device)
        singles = sum(step.query_len == 1 for step in steps)
        begins = accumulate((step.query_len for step in steps[singles:]), initial=singles)
        longer = [
            (step.query_len, step.start + step.query_len, rows[begin][TABLE_ROW])
            for step, begin in zip(steps[singles:], begins, strict=False)  # the last begins nothing
        ]
        batch = self._batch(inputs, singles, longer, lora, self._own_rows(steps))
        faults = [part.routing.fault for _, part in batch.parts if part.routing is not None]
        hidden = self._decoder.hidden(batch, self._workspaces)
        scores = self._scores(steps, hidden, batch.slot)
        draws = self._draws(steps, hidden, batch.slot)
        return self._results(steps, draws, torch.cat(faults) if faults else None, scores)

    def _batch(
        self,
        inputs: Tensor,
        singles: int,
        longer: Sequence[tuple[int, int, int]],
        lora: bool,
        own: tuple[OwnRows, ...] = (),
    ) -> PagedBatch:
        """``inputs`` packed, on the device: ``singles`` decode rows, then for each of ``longer`` (query tokens, keys
        with them, row of the block tables)."""
        shape, generation = self._device.shape, self._device.adapters.tables.generation
        tables = self._device.tables.table
        decode = prefill = None
        if singles:
            made = DecodeInputs(shape, singles, lora, self._splits)
            made.packed.copy_(inputs[:, :singles])
            decode = made.prepare(tables, generation)
        if longer:
            starts = [0, *accumulate(tokens for tokens, _, _ in longer)]
            lengths, rows = [keys for _, keys, _ in longer], [row for _, _, row in longer]
            part = inputs[:, singles:]
            prefill = prefill_rows(shape, part, starts, lengths, rows, tables, generation, lora)
        slots = [part.routing.slot for part in (decode, prefill) if part is not None and part.routing is not None]
        ids, positions, place = (inputs[row].contiguous() for row in (IDS, POSITIONS, PLACE))
        return PagedBatch(ids, positions, place, torch.cat(slots) if slots else None, decode, prefill, own)

    def _own_rows(self, steps: Sequence[SequenceStep]) -> tuple[OwnRows, ...]:
        found, begin = [], 0
        for step in steps:
            entry, end = self._entry(step), begin + step.query_len
            if entry is not None and entry.special:
                extras = entry.extras or AdapterExtras()
                found.append(OwnRows(ExtraRows(begin, end, extras), entry.in_gains))
            begin = end
        return tuple(found)

    def _scores(
        self, steps: Sequence[SequenceStep], hidden: Tensor, slot: Tensor | None
    ) -> dict[SequenceId, tuple[TokenLogprobs, ...] | None]:
        found: dict[SequenceId, tuple[TokenLogprobs, ...] | None] = {}
        begin = 0
        for step in steps:
            if step.score_rows:
                entry = self._entry(step)
                extras = entry.extras if entry else None
                own_slot = None if slot is None else slot[begin : begin + 1]

                def head(
                    rows: Tensor, extras: AdapterExtras | None = extras, own_slot: Tensor | None = own_slot
                ) -> Tensor:
                    slots = None if own_slot is None else own_slot.expand(len(rows)).contiguous()
                    return self._decoder.logits(rows, slots, extra_rows([len(rows)], [extras])).float().cpu()

                rows = hidden[begin : begin + step.score_rows]
                found[step.sequence] = score_prompt(step, self._sequences[step.sequence], rows, head)
            begin += step.query_len
        return found

    def _draws(self, steps: Sequence[SequenceStep], hidden: Tensor, slot: Tensor | None) -> Draws:
        """By vocabulary: rows of one call have as many logits."""
        by_vocabulary: dict[int | None, list[tuple[int, SequenceStep, AdapterExtras | None]]] = {}
        begin = 0
        for step in steps:
            begin += step.query_len
            if step.logit_rows:
                entry = self._entry(step)
                extras = entry.extras if entry else None
                group = by_vocabulary.setdefault(extras.vocabulary if extras else None, [])
                group.append((begin - 1, step, extras))
        parts: list[Draws] = []
        for group in by_vocabulary.values():
            at = upload(torch.tensor([row for row, _, _ in group], dtype=torch.int64), hidden.device)
            own = extra_rows([1] * len(group), [extras for _, _, extras in group])
            own_slot = None if slot is None else slot.index_select(0, at)
            logits = self._decoder.logits(hidden.index_select(0, at), own_slot, own)
            parts.append(draw_on_device([step for _, step, _ in group], self._sequences, logits))
        return lambda: {sequence: drawn for part in parts for sequence, drawn in part().items()}

    def _results(
        self,
        steps: Sequence[SequenceStep],
        draws: Draws,
        fault: Tensor | None,
        scores: dict[SequenceId, tuple[TokenLogprobs, ...] | None],
    ) -> Results:
        # Provenance is read from the slot table after the forward pass was enqueued, on the thread that changes it.
        digests = [entry.digest if (entry := self._entry(step)) is not None else None for step in steps]

        def result() -> list[SequenceResult]:
            drawn, faulty = draws(), [] if fault is None else fault.tolist()
            found, begin = [], 0
            for step, digest in zip(steps, digests, strict=True):
                end = begin + step.query_len
                if any(faulty[begin:end]):
                    found.append(SequenceResult(step.sequence, (), None, SlotIntegrity.reason))
                else:
                    found.append(self._result(step, digest, drawn, scores))
                begin = end
            return found

        return result

    def _result(
        self,
        step: SequenceStep,
        digest: AdapterDigest | None,
        drawn: dict[SequenceId, Drawn | None],
        scores: dict[SequenceId, tuple[TokenLogprobs, ...] | None],
    ) -> SequenceResult:
        prompt, token = scores.get(step.sequence, ()), drawn.get(step.sequence)
        if prompt is None or (step.logit_rows and token is None):
            return SequenceResult(step.sequence, (), digest, NonFiniteLogits.reason)
        if token is None:
            return SequenceResult(step.sequence, (), digest, None, (), prompt)
        self._sequences[step.sequence].append(token.token)
        return SequenceResult(step.sequence, (token.token,), digest, None, token.logprobs, prompt)


__all__ = ["Device", "PagedRunner"]
