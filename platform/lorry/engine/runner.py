"""Runs a StepPlan on the CPU: loads, checks, forward, sampling. Knows sequences only by their plan."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from lorry.adapters.image.build import DeviceImage
from lorry.engine.arena import AdapterArena, SlotEntry
from lorry.engine.sampler import Drawn, SequenceState, draw, score_prompt
from lorry.errors import AdapterLoadFailed, LorryError, NonFiniteLogits, SlotIntegrity
from lorry.ids import BASE_SLOT, AdapterDigest, PageId, SequenceId, SlotId
from lorry.layers.adapted import extra_rows
from lorry.layers.extras import AdapterExtras
from lorry.layers.kv import KVView
from lorry.models.attention import plan_layers
from lorry.models.decoder import Batch, Decoder, PrefillChunk
from lorry.request import TokenLogprobs
from lorry.scheduler.plan import SequenceResult, SequenceStep, StepPlan, StepResult
from lorry_kernels.cpu import route

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepHandle:
    """An accepted step. On the CPU its work is done when ``submit`` returns."""

    result: StepResult


class CpuRunner:
    """``submit`` then ``collect``, one step at a time, on one thread.

    ``image`` hands out host images, ``discard`` makes the host tier fetch one anew that could not be loaded.
    """

    def __init__(
        self,
        decoder: Decoder,
        kv: KVView,
        arena: AdapterArena,
        image: Callable[[AdapterDigest], DeviceImage | None],
        discard: Callable[[AdapterDigest], None] = lambda digest: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._decoder = decoder
        self._kv = kv
        self._arena = arena
        self._image = image
        self._discard = discard
        self._clock = clock
        self._sequences: dict[SequenceId, SequenceState] = {}

    def submit(self, plan: StepPlan) -> StepHandle:
        began = self._clock()
        for sequence in plan.finished:
            self._sequences.pop(sequence, None)
        for new in plan.new:
            self._sequences[new.sequence] = SequenceState.of(new)
        lost = self._unload_adapters(plan)
        self._kv.release(plan.idle_pages)
        self._arena.release(plan.idle_chunks)
        failed = self._load_adapters(plan)
        self._verify_starting(plan)
        results: list[SequenceResult] = []
        runnable: list[SequenceStep] = []
        for step in plan.sequences:
            if self._slot_matches(step):
                runnable.append(step)
            else:
                results.append(SequenceResult(step.sequence, (), None, SlotIntegrity.reason))
        if runnable:
            results.extend(self._run(runnable))
        return StepHandle(StepResult(plan.step, tuple(results), self._clock() - began, tuple(failed), tuple(lost)))

    def collect(self, handle: StepHandle) -> StepResult:
        return handle.result

    def verify(self, digest: AdapterDigest, step: int) -> None:
        """Before an answer is stated to be complete: the device still holds the bytes that were loaded as
        ``digest``. Raises SlotIntegrity."""
        self._arena.verify(self._arena.slot_of(digest), step)

    def _unload_adapters(self, plan: StepPlan) -> list[AdapterDigest]:
        """Reads the bytes once more before they go: who was preempted from this fill, or uses pages that it computed,
        has nobody else to ask. Answers the versions whose bytes had changed."""
        lost: list[AdapterDigest] = []
        for slot in plan.unloads:
            entry = self._arena.entry(slot)
            try:
                if entry is not None:
                    self._arena.verify(slot, plan.step)
            except SlotIntegrity as error:
                log.error("step %d: %s", plan.step, error)
                if entry is not None:
                    lost.append(entry.digest)
            self._arena.unload(slot)
        return lost

    def _load_adapters(self, plan: StepPlan) -> list[tuple[SlotId, str]]:
        failed: list[tuple[SlotId, str]] = []
        for load in plan.loads:
            try:
                image = self._image(load.digest)
                if image is None:
                    raise AdapterLoadFailed(f"adapter {load.digest}: its host copy is gone; try again")
                self._arena.load(load, image, plan.step)
            except LorryError as error:
                self._arena.unload(load.slot)
                self._discard(load.digest)
                failed.append((load.slot, error.message))
        return failed

    def _verify_starting(self, plan: StepPlan) -> None:
        """Reads again the slots that sequences start on. A slot whose bytes changed is unpublished here, before
        any sequence of this step is matched against the table, so none of its sequences runs."""
        for step in plan.sequences:
            state = self._sequences[step.sequence]
            if step.slot == BASE_SLOT or state.started:
                continue
            state.started = True
            try:
                self._arena.verify(step.slot, plan.step)
            except SlotIntegrity as error:
                log.error("step %d: %s", plan.step, error)

    def _slot_matches(self, step: SequenceStep) -> bool:
        """Whether the device's slot is the fill that the plan means, and has a row for each of the sequence's ids."""
        vocabulary = self._decoder.spec.vocabulary
        if step.slot != BASE_SLOT:
            entry = self._arena.entry(step.slot)
            if entry is None or entry.generation != step.generation or entry.digest != step.digest:
                return False
            if entry.extras is not None and entry.extras.vocabulary is not None:
                vocabulary = entry.extras.vocabulary
        return self._sequences[step.sequence].largest_id < vocabulary

    @torch.inference_mode()
    def _run(self, steps: list[SequenceStep]) -> list[SequenceResult]:
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
        hidden = self._decoder.hidden(batch, self._kv, self._arena.sites)
        scores: dict[SequenceId, tuple[TokenLogprobs, ...] | None] = {}
        for step, (begin, _, _), own in zip(ordered, parts, extras, strict=True):
            if step.score_rows:
                rows = hidden[begin : begin + step.score_rows]
                head = partial(self._own_head, own)
                scores[step.sequence] = score_prompt(step, self._sequences[step.sequence], rows, head)
        return self._sample(ordered, hidden.index_select(0, batch.logit_rows), scores)

    def _entry(self, step: SequenceStep) -> SlotEntry | None:
        return self._arena.entry(step.slot) if step.slot != BASE_SLOT else None

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
            adapter = entry.digest if entry else None
            prompt, found = scores.get(step.sequence, ()), drawn.get(step.sequence)
            if prompt is None or (step.logit_rows and found is None):
                results.append(SequenceResult(step.sequence, (), adapter, NonFiniteLogits.reason))
            elif found is not None:
                self._sequences[step.sequence].append(found.token)
                results.append(SequenceResult(step.sequence, (found.token,), adapter, None, found.logprobs, prompt))
            else:
                results.append(SequenceResult(step.sequence, (), adapter, None, (), prompt))
        return results


__all__ = ["CpuRunner", "StepHandle"]
