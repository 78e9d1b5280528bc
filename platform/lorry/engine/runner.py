"""Runs a StepPlan on the CPU: loads, checks, forward, sampling."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from lorry.adapters.image.build import DeviceImage
from lorry.engine.arena import AdapterArena, SlotEntry
from lorry.engine.plan_runner import PlanRunner, Results
from lorry.engine.sampler import Drawn, draw, score_prompt
from lorry.errors import NonFiniteLogits
from lorry.ids import AdapterKey, PageId, SequenceId
from lorry.layers.adapted import extra_rows
from lorry.layers.extras import AdapterExtras
from lorry.layers.kv import KVView
from lorry.models.attention import plan_layers
from lorry.models.decoder import Batch, Decoder, PrefillChunk
from lorry.request import TokenLogprobs
from lorry.scheduler.plan import SequenceResult, SequenceStep
from lorry_kernels.cpu import route


class CpuRunner(PlanRunner[SlotEntry]):
    """A step's work is done when ``submit`` returns."""

    def __init__(
        self,
        decoder: Decoder,
        kv: KVView,
        arena: AdapterArena,
        image: Callable[[AdapterKey], DeviceImage | None],
        discard: Callable[[AdapterKey], None] = lambda adapter: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(arena, decoder.spec.vocabulary, image, discard, clock)
        self._decoder = decoder
        self._kv = kv
        self._sites = arena.sites
        self.rank_granule = arena.chunk_rank

    def _forget(self, sequences: Sequence[SequenceId]) -> None:
        """Nothing is kept of one but its state."""

    def _release_pages(self, pages: Sequence[PageId]) -> None:
        self._kv.release(pages)

    @torch.inference_mode()
    def _run(self, steps: list[SequenceStep]) -> Results:
        page = self._kv.page_tokens
        ordered = sorted(steps, key=lambda s: (s.query_len > 1, s.slot, s.sequence))
        ids: list[int] = []
        positions: list[int] = []
        pages: list[int] = []
        fresh: list[PageId] = []
        parts: list[tuple[int, int, tuple[int, ...]]] = []
        prefill: list[PrefillChunk] = []
        extras: list[AdapterExtras | None] = []
        logit_rows: list[int] = []
        for step in ordered:
            state = self._sequences[step.sequence]
            begin, stop = len(ids), step.start + step.query_len
            ids.extend(state.ids[step.start : stop])
            positions.extend(range(step.start, stop))
            shared = step.shared_pages
            pages.extend(
                step.block_table[at] if (at := p // page) >= shared else self._kv.scratch
                for p in range(step.start, stop)
            )
            first = max(-(-step.start // page), shared)
            fresh.extend(step.block_table[at] for at in range(first, (stop - 1) // page + 1))
            entry = self._entry(step)
            parts.append((begin, len(ids), entry.rows if entry else ()))
            extras.append(entry.extras if entry else None)
            if step.query_len > 1:
                table = torch.tensor(step.block_table[: (stop - 1) // page + 1])
                prefill.append(PrefillChunk(begin, len(ids), step.start, table))
            logit_rows.extend(range(len(ids) - step.logit_rows, len(ids)))
        self._kv.clear(fresh)
        single = [s for s in ordered if s.query_len == 1]
        tables, lengths = [s.block_table for s in single], [s.start + 1 for s in single]
        decode = plan_layers(self._decoder.spec, tables, lengths, page) if single else None
        batch = Batch(
            ids=torch.tensor(ids),
            positions=torch.tensor(positions),
            kv_index=self._kv.write_index(pages, [p % page for p in positions]),
            decode_rows=len(single),
            decode=decode,
            prefill=tuple(prefill),
            logit_rows=torch.tensor(logit_rows, dtype=torch.int64),
            lora=route(parts),
            adapted=self._decoder.adapted(extra_rows((end - begin for begin, end, _ in parts), extras)),
        )
        hidden = self._decoder.hidden(batch, self._kv, self._sites)
        scores: dict[SequenceId, tuple[TokenLogprobs, ...] | None] = {}
        for step, (begin, _, _), own in zip(ordered, parts, extras, strict=True):
            if step.score_rows:
                rows = hidden[begin : begin + step.score_rows]
                head = partial(self._own_head, own)
                scores[step.sequence] = score_prompt(step, self._sequences[step.sequence], rows, head)
        found = self._sample(ordered, hidden.index_select(0, batch.logit_rows), scores)
        return lambda: found

    def _own_head(self, extras: AdapterExtras | None, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of rows that all have one adapter."""
        return self._decoder.head(hidden, extra_rows([hidden.shape[0]], [extras]))

    def _sample(
        self,
        steps: list[SequenceStep],
        hidden: torch.Tensor,
        scores: dict[SequenceId, tuple[TokenLogprobs, ...] | None],
    ) -> list[SequenceResult]:
        """``hidden`` holds the logit rows. A sequence with a row that is not finite gets neither token nor logprobs."""
        drawn: dict[SequenceId, Drawn | None] = {}
        by_vocabulary: dict[int | None, list[tuple[int, SequenceStep, AdapterExtras | None]]] = {}
        sampled = [step for step in steps if step.logit_rows]
        for row, step in enumerate(sampled):
            entry = self._entry(step)
            own = entry.extras if entry else None
            by_vocabulary.setdefault(own.vocabulary if own else None, []).append((row, step, own))
        for group in by_vocabulary.values():
            rows, own_steps = [row for row, _, _ in group], [step for _, step, _ in group]
            own_hidden = hidden if len(rows) == hidden.shape[0] else hidden.index_select(0, torch.tensor(rows))
            parts = extra_rows([1] * len(rows), [own for _, _, own in group])
            drawn |= draw(own_steps, self._sequences, self._decoder.head(own_hidden, parts))
        results = []
        for step in steps:
            # Provenance is read back from the slot table here, after the forward pass that used it.
            entry = self._entry(step)
            adapter = entry.adapter if entry else None
            prompt, found = scores.get(step.sequence, ()), drawn.get(step.sequence)
            if prompt is None or (step.logit_rows and found is None):
                results.append(SequenceResult(step.sequence, (), adapter, NonFiniteLogits.reason))
            elif found is not None:
                self._sequences[step.sequence].append(found.token)
                results.append(SequenceResult(step.sequence, (found.token,), adapter, None, found.logprobs, prompt))
            else:
                results.append(SequenceResult(step.sequence, (), adapter, None, (), prompt))
        return results


__all__ = ["CpuRunner"]
