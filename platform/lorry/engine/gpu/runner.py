"""Runs a StepPlan on a device with a page arena: decode steps as captured graphs, all others eagerly.

A head that is a matrix of an adapter's own is outside: it may have another vocabulary, and a graph has one shape of
answer. So the graph of a step with such rows leaves its hidden rows, and those heads are multiplied after it, one
vocabulary at a time; rows of the base's head, with LoRA on it or without, have the graph's logits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from lorry.adapters.image.packed import PackedImage
from lorry.engine.gpu.adapters import DeviceAdapters, DeviceSlot
from lorry.engine.gpu.block_tables import BlockTableMirror, packed, upload
from lorry.engine.gpu.buckets import bucket_of
from lorry.engine.gpu.forms import ALWAYS, Form
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
from lorry.ids import BASE_SLOT, AdapterKey, PageId, SequenceId
from lorry.layers.adapted import ExtraRows, extra_rows
from lorry.layers.extras import AdapterExtras, ChunkedHead, HeadExtras
from lorry.layers.sites import SITE_SLICES, Site
from lorry.layers.slot_row import CHUNK_RANK
from lorry.layers.spec import DecoderSpec
from lorry.models.paged import Beside, PagedBatch, PagedDecoder
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
    """``buckets``: numbers of decode rows that are captured, ascending; without ``graphs`` nothing is. ``forms`` are
    captured by ``capture``, others where a step first has one."""

    def __init__(
        self,
        device: Device,
        image: Callable[[AdapterKey], PackedImage | None],
        discard: Callable[[AdapterKey], None] = lambda adapter: None,
        clock: Callable[[], float] = time.monotonic,
        graphs: Graphs | None = None,
        buckets: Sequence[int] = (),
        max_tokens: int = 2048,
        forms: Sequence[Form] = ALWAYS,
    ) -> None:
        super().__init__(device.adapters, device.decoder.spec.vocabulary, image, discard, clock)
        self.rank_granule = CHUNK_RANK
        self.overlaps = device.shape.device.type == "cuda"
        self._device = device
        self._decoder = device.decoder
        self._graphs = graphs
        self._buckets = tuple(buckets)
        self._forms = tuple(forms)
        self._beside = {form: _beside(device.decoder.spec, form) for form in Form}
        self._captured: dict[tuple[int, Form], _Captured] = {}
        rows = self._buckets[-1] if self._buckets else device.tables.nobody
        self._workspaces: Workspaces = device.decoder.workspaces(rows, max_tokens)
        self._splits = decode_workspace(device.shape, rows)
        self._logits: Tensor | None = None
        self._hidden: Tensor | None = None

    def _forget(self, sequences: Sequence[SequenceId]) -> None:
        self._device.tables.drop(sequences)

    def _release_pages(self, pages: Sequence[PageId]) -> None:
        self._device.pages.release_pages(pages)

    @torch.inference_mode()
    def capture(self) -> None:
        """Every bucket in its forms, and what eager steps launch: part of warming up, on the thread that will run the
        steps. Largest first, so that the others share its memory."""
        device = self._device.shape.device
        if device.type == "cuda":
            torch.cuda.set_device(device)  # of this thread: Triton launches there
        for rows in reversed(self._buckets):
            for form in self._forms:
                self._capture(rows, form)
        self._warm_eager()

    def _warm_eager(self) -> None:
        """A mixed step with adapters of every kind, of rows that nobody reads, and every way to draw: kernels are
        compiled here, not while requests wait."""
        nobody = self._device.tables.nobody
        inputs = upload(packed([padding_row(nobody)] * 3).t().contiguous(), self._device.shape.device)
        batch = self._batch(inputs, 1, [(2, 2, nobody)], True, self._beside[Form.SLICED])
        hidden = self._decoder.hidden(batch, self._workspaces)
        assert batch.slot is not None
        warm_draws(self._decoder.logits(hidden, batch.slot, routing=self._decoder.head_routing(batch.slot)))

    @torch.inference_mode()
    def largest_prefill(self, lengths: Sequence[int]) -> None:
        """A prefill of nobody's prompts of these lengths, with every product that adapters may ask for: for a profiling
        pass."""
        nobody = self._device.tables.nobody
        inputs = upload(packed([padding_row(nobody)] * sum(lengths)).t().contiguous(), self._device.shape.device)
        longer = [(tokens, tokens, nobody) for tokens in lengths]
        batch = self._batch(inputs, 0, longer, True, self._beside[Form.SLICED])
        self._decoder.hidden(batch, self._workspaces)

    def _capture(self, rows: int, form: Form) -> _Captured | None:
        if self._graphs is None:
            return None
        key = (rows, form)
        found = self._captured.get(key)
        if found is None:
            most, device = self._buckets[-1], self._device.shape.device
            if self._logits is None:
                self._logits = torch.empty(most, self._vocabulary, dtype=torch.float32, device=device)
            if self._hidden is None:
                self._hidden = torch.empty(most, self._decoder.spec.hidden, dtype=self._decoder.dtype, device=device)
            inputs = DecodeInputs(self._device.shape, rows, form >= Form.LORA, self._splits)
            nobody = padding_row(self._device.tables.nobody)
            inputs.packed.copy_(packed([nobody] * rows).t())
            graph = self._graphs.capture(lambda: self._decode(inputs, form), (inputs.packed,))
            found = self._captured[key] = _Captured(inputs, graph)
        return found

    def _decode(self, inputs: DecodeInputs, form: Form) -> tuple[Tensor, ...]:
        """Logits ``[rows, V]`` of the base's head, from OWN on with LoRA on it, and faults of decode rows, from static
        buffers alone; from OWN on the rows themselves are left in ``_hidden``. All graphs answer in one buffer: a
        hundred of them with one each would keep gigabytes."""
        assert self._logits is not None
        assert self._hidden is not None
        decode = inputs.prepare(self._device.tables.table, self._device.adapters.tables.generation)
        slot = None if decode.routing is None else decode.routing.slot
        ids, positions, place = (inputs.packed[row] for row in (IDS, POSITIONS, PLACE))
        batch = PagedBatch(ids, positions, place, slot, decode, None, self._beside[form])
        logits = self._logits[: inputs.packed.shape[1]]
        hidden = self._decoder.hidden(batch, self._workspaces)
        own = form >= Form.OWN
        if own:
            self._hidden[: len(hidden)].copy_(hidden)
        logits.copy_(self._decoder.logits(hidden, slot, routing=decode.routing if own else None))
        return (logits,) if inputs.fault is None else (logits, inputs.fault)

    @torch.inference_mode()
    def _run(self, steps: list[SequenceStep]) -> Results:
        ordered = sorted(steps, key=lambda step: step.query_len > 1)
        rows = [row for step in ordered for row in self._rows(step)]
        self._device.tables.flush()
        entries = [self._entry(step) for step in ordered]
        form = max((entry.form for entry in entries if entry is not None), default=Form.BASE)
        bucket = bucket_of(self._buckets, len(rows))
        plain = ordered[-1].query_len == 1 and not any(step.score_rows for step in ordered)
        captured = self._capture(bucket, form) if plain and bucket is not None else None
        if captured is not None:
            return self._replay(captured, ordered, rows)
        return self._eager(ordered, rows, form >= Form.LORA)

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
        assert self._hidden is not None
        hidden, slot = self._hidden[: len(steps)], inputs.routed_slot
        draws = self._draws(steps, hidden, None if slot is None else slot[: len(steps)], logits)
        return self._results(steps, draws, fault[0] if fault else None, {})

    def _eager(self, steps: list[SequenceStep], rows: list[tuple[int, ...]], lora: bool) -> Results:
        inputs = upload(packed(rows).t().contiguous(), self._device.shape.device)
        singles = sum(step.query_len == 1 for step in steps)
        begins = accumulate((step.query_len for step in steps[singles:]), initial=singles)
        longer = [
            (step.query_len, step.start + step.query_len, rows[begin][TABLE_ROW])
            for step, begin in zip(steps[singles:], begins, strict=False)  # the last begins nothing
        ]
        batch = self._batch(inputs, singles, longer, lora, _needed(map(self._entry, steps)))
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
        beside: Beside,
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
        return PagedBatch(ids, positions, place, torch.cat(slots) if slots else None, decode, prefill, beside)

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
                    return self._logits_of(rows, slots, extra_rows([len(rows)], [extras])).cpu()

                rows = hidden[begin : begin + step.score_rows]
                found[step.sequence] = score_prompt(step, self._sequences[step.sequence], rows, head)
            begin += step.query_len
        return found

    def _draws(
        self, steps: Sequence[SequenceStep], hidden: Tensor, slot: Tensor | None, logits: Tensor | None = None
    ) -> Draws:
        """By vocabulary: rows of one call have as many logits. Rows of the base's head take ``logits`` where they are
        given, one a step. A step of one token may be a prefill chunk that is not its prompt's last: it draws none."""
        by_vocabulary: dict[int | None, list[tuple[int, SequenceStep, AdapterExtras | None]]] = {}
        ready: list[tuple[int, SequenceStep]] = []
        begin = 0
        for step in steps:
            begin += step.query_len
            if step.logit_rows:
                entry = self._entry(step)
                extras = entry.extras if entry else None
                if logits is not None and (extras is None or not isinstance(extras.head, HeadExtras)):
                    ready.append((begin - 1, step))
                else:
                    group = by_vocabulary.setdefault(extras.vocabulary if extras else None, [])
                    group.append((begin - 1, step, extras))
        parts: list[Draws] = []
        if logits is not None and ready:
            found = logits[: len(ready)] if len(ready) == len(steps) else _taken(logits, [row for row, _ in ready])
            parts.append(draw_on_device([step for _, step in ready], self._sequences, found))
        for group in by_vocabulary.values():
            rows = [row for row, _, _ in group]
            own = extra_rows([1] * len(group), [extras for _, _, extras in group])
            own_slot = None if slot is None else _taken(slot, rows)
            own_logits = self._logits_of(_taken(hidden, rows), own_slot, own)
            parts.append(draw_on_device([step for _, step, _ in group], self._sequences, own_logits))
        return lambda: {sequence: drawn for part in parts for sequence, drawn in part().items()}

    def _logits_of(self, hidden: Tensor, slot: Tensor | None, own: Sequence[ExtraRows]) -> Tensor:
        """Eagerly, of rows of one vocabulary."""
        routing = None
        if slot is not None and any(isinstance(part.extras.head, ChunkedHead) for part in own):
            routing = self._decoder.head_routing(slot)
        return self._decoder.logits(hidden, slot, own, routing)

    def _results(
        self,
        steps: Sequence[SequenceStep],
        draws: Draws,
        fault: Tensor | None,
        scores: dict[SequenceId, tuple[TokenLogprobs, ...] | None],
    ) -> Results:
        # Provenance is read from the slot table after the forward pass was enqueued, on the thread that changes it.
        adapters = [entry.adapter if (entry := self._entry(step)) is not None else None for step in steps]

        def result() -> list[SequenceResult]:
            drawn, faulty = draws(), [] if fault is None else fault.tolist()
            found, begin = [], 0
            for step, adapter in zip(steps, adapters, strict=True):
                end = begin + step.query_len
                if any(faulty[begin:end]):
                    found.append(SequenceResult(step.sequence, (), None, SlotIntegrity.reason))
                else:
                    found.append(self._result(step, adapter, drawn, scores))
                begin = end
            return found

        return result

    def _result(
        self,
        step: SequenceStep,
        adapter: AdapterKey | None,
        drawn: dict[SequenceId, Drawn | None],
        scores: dict[SequenceId, tuple[TokenLogprobs, ...] | None],
    ) -> SequenceResult:
        prompt, token = scores.get(step.sequence, ()), drawn.get(step.sequence)
        if prompt is None or (step.logit_rows and token is None):
            return SequenceResult(step.sequence, (), adapter, NonFiniteLogits.reason)
        if token is None:
            return SequenceResult(step.sequence, (), adapter, None, (), prompt)
        self._sequences[step.sequence].append(token.token)
        return SequenceResult(step.sequence, (token.token,), adapter, None, token.logprobs, prompt)


def _taken(tensor: Tensor, rows: Sequence[int]) -> Tensor:
    return tensor.index_select(0, upload(torch.tensor(rows, dtype=torch.int64), tensor.device))


def _beside(spec: DecoderSpec, form: Form) -> Beside:
    """All that a step of the form may need: of a graph that is captured before it is known who runs in it."""
    if form < Form.OWN:
        return Beside()
    sites = [site for site in Site if form == Form.SLICED or len(SITE_SLICES[site]) == 1]
    every = {site: tuple(range(len(SITE_SLICES[site]))) for site in sites}
    return Beside({(layer, site): every[site] for layer in range(spec.layers) for site in sites}, embedding=True)


def _needed(entries: Iterable[DeviceSlot | None]) -> Beside:
    """What these need together, and no more."""
    gains: dict[tuple[int, Site], tuple[int, ...]] = {}
    embedding = False
    for entry in {id(entry): entry for entry in entries if entry is not None}.values():
        embedding = embedding or (entry.extras is not None and entry.extras.embedding is not None)
        for key, slices in entry.in_gains.items():
            gains[key] = tuple(sorted({*gains.get(key, ()), *slices}))
    return Beside(gains, embedding)


__all__ = ["Device", "PagedRunner"]
