"""What an engine is set to on this machine, and why: each number with the sentence that derives it. No torch.

The rates below are worked back from ``benchmarks/results/serving_cpu.json`` (two cores of an x86 server, SmolLM2-135M
in bfloat16, a step's fixed costs included); the bounds on a step are chosen, so that they allow what that benchmark ran
with. They place a machine, they do not promise; no sweep over batch sizes has been made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lorry.config import MemoryConfig, SchedulerConfig
from lorry.errors import InvalidRequest, UnsupportedBase
from lorry.layers.base_files import CONFIG_FILE
from lorry.layers.sites import SITE_SLICES
from lorry.layers.spec import DecoderSpec
from lorry.memory import least_budget, split_budget

CHUNK_FLOPS_PER_CORE = 1.0e11
"""Of prefill chunks: 2,048 prompt tokens of 134.5 M parameters in 2.8 s on two cores."""
ROW_FLOPS_PER_CORE = 5.6e10
"""Of a further row in a decode step: 2.4 ms each, a little more than half of a chunk's rate."""
WEIGHT_BYTES_PER_S = 3.7e9
"""Of a decode step with one row: 269 MB of weights in 73 ms."""
DECODE_STEP_S = 0.12
"""A step of decodes alone should take no longer: eight tokens a second for each reader, faster than people read."""
MIXED_STEP_S = 0.4
"""A step with prefill in it should take no longer: the longest pause between two tokens that readers see."""
TYPICAL_TOKENS = 512
"""Prompt and answer of a typical request."""
MOST_SEQUENCES = 256
"""The scheduler's own work for a step is measured, and under a millisecond, up to so many."""
MOST_TOKENS = 2048
"""Each token of a step takes memory for its activations beside the budget."""
_LEAST_TOKENS = 64
_PAGES = (16, 64)
_STATE_BYTES = 4
"""Keys, values and the rank rows of adapters are float32 on the CPU."""


@dataclass(frozen=True, slots=True)
class ModelNumbers:
    """What of a base decides its cost."""

    parameters: int
    kv_elements_per_token: int
    lora_row_elements: int
    """Of one rank row over all sites."""
    context_tokens: int
    weight_bytes: int = 2
    """Of one parameter."""
    state_bytes: int = _STATE_BYTES
    """Of one element of KV or of an adapter's rank rows."""

    @classmethod
    def of(cls, spec: DecoderSpec, dtype: str) -> ModelNumbers:
        names = [name for slices in SITE_SLICES.values() for name in slices]
        layer = sum(rows * columns for rows, columns in map(spec.slice_shape, names))
        tables = spec.vocabulary * spec.hidden * (1 if spec.tied_head else 2)
        width = 2 if dtype == "bfloat16" else 4  # float16 is widened at load
        parameters = spec.layers * layer + tables
        return cls(parameters, spec.kv_elements_per_token, spec.lora_row_elements, spec.context_tokens, width)

    @classmethod
    def read(cls, base_dir: Path, dtype: str) -> ModelNumbers:
        """Raises UnsupportedBase where the folder has no readable config.json, or it names what is not served."""
        path = base_dir / CONFIG_FILE
        try:
            config = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise UnsupportedBase(f"base: {path} cannot be read ({error}); give a Hugging Face model folder") from error
        return cls.of(DecoderSpec.from_config(config), dtype)


@dataclass(frozen=True, slots=True)
class Choice:
    """One setting: its value, what it counts, and the sentence that says why it is that."""

    name: str
    value: int
    unit: str
    why: str

    def __str__(self) -> str:
        return f"{self.name} = {self.value} {self.unit}: {self.why}"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    max_sequences: Choice
    token_budget: Choice
    prefill_chunk_tokens: Choice
    page_tokens: Choice
    max_rank: Choice
    threads: Choice

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (
            self.max_sequences,
            self.token_budget,
            self.prefill_chunk_tokens,
            self.page_tokens,
            self.max_rank,
            self.threads,
        )

    def scheduler(self, base: SchedulerConfig) -> SchedulerConfig:
        return replace(
            base,
            max_sequences=self.max_sequences.value,
            token_budget=self.token_budget.value,
            prefill_chunk_tokens=self.prefill_chunk_tokens.value,
        )

    def memory(self, base: MemoryConfig) -> MemoryConfig:
        return replace(base, page_tokens=self.page_tokens.value, max_rank=self.max_rank.value)


def derive(
    model: ModelNumbers,
    memory: MemoryConfig,
    cores: int,
    context_tokens: int,
    given: Mapping[str, int | None] | None = None,
) -> EngineSettings:
    """``context_tokens``: the longest sequence that is allowed. ``memory.max_rank``: the largest rank to serve, where
    the budget holds it. ``given``: settings by name that an operator chose; the others follow from them, and whether
    the budget holds those is not looked at. Raises InvalidRequest for one below 1."""
    chosen = {name: value for name, value in (given or {}).items() if value is not None}
    for name, value in chosen.items():
        if value < 1:
            raise InvalidRequest.field(name, f"{value} must be at least 1")
    context = min(context_tokens, model.context_tokens)
    typical = min(TYPICAL_TOKENS, context)
    threads = _choose(chosen, "threads", "threads", cores, "one for each core that this process may use")
    page = _choose(chosen, "page_tokens", "tokens", *_page(typical))
    paged = replace(memory, page_tokens=page.value)
    rank = _choose(chosen, "max_rank", "rank rows", *_rank(model, paged, context))
    sequences = _choose(chosen, "max_sequences", "sequences", *_sequences(model, memory, threads.value, typical))
    budget = _choose(chosen, "token_budget", "tokens a step", *_budget(model, threads.value, sequences.value))
    chunk = _choose(
        chosen,
        "prefill_chunk_tokens",
        "tokens",
        budget.value,
        "the token budget, since a smaller chunk only makes more steps: decodes have their share first anyway",
    )
    return EngineSettings(sequences, budget, chunk, page, rank, threads)


def _choose(given: Mapping[str, int], name: str, unit: str, value: int, why: str) -> Choice:
    if name in given:
        return Choice(name, given[name], unit, "as the operator chose")
    return Choice(name, value, unit, why)


def _page(typical: int) -> tuple[int, str]:
    least, most = _PAGES
    page = min(most, max(least, _power_of_two(typical // 8)))
    return page, (
        f"the last page of a sequence is half empty on average, {page // 2} of {typical} typical tokens; pages half "
        f"the size would be twice the {-(-typical // page)} that attention walks"
    )


def _rank(model: ModelNumbers, memory: MemoryConfig, context: int) -> tuple[int, str]:
    wanted = memory.max_rank
    page_bytes = memory.page_tokens * model.kv_elements_per_token * model.state_bytes
    chunk_bytes = memory.chunk_rank * model.lora_row_elements * model.state_bytes
    powers = [1 << bits for bits in range(wanted.bit_length() - 1, -1, -1)]
    for rank in dict.fromkeys((wanted, *powers)):
        try:
            split = split_budget(replace(memory, max_rank=rank), page_bytes, chunk_bytes, context)
        except InvalidRequest:
            continue
        takes = (
            f"an adapter of that rank takes {_mb(split.chunks_per_largest * chunk_bytes)} of the "
            f"{_mb(split.budget_bytes)} budget, and what adapters bring beside rank rows has {_mb(split.extras_bytes)} "
            "for all of them"
        )
        if rank == wanted:
            return rank, f"the largest that is served: {takes}"
        least = least_budget(memory, page_bytes, chunk_bytes, context)
        return rank, (
            f"the largest power of two that the budget holds beside one sequence of {context} tokens: {takes}; "
            f"{wanted} would need a budget of {least} bytes"
        )
    return 1, f"the budget of {_mb(memory.budget_bytes)} holds no adapter beside one sequence of {context} tokens"


def _sequences(model: ModelNumbers, memory: MemoryConfig, cores: int, typical: int) -> tuple[int, str]:
    sequence_bytes = typical * model.kv_elements_per_token * model.state_bytes
    kv_bytes = int(memory.budget_bytes * (1 - memory.adapter_fraction))
    fit = kv_bytes // sequence_bytes
    read_s = model.parameters * model.weight_bytes / WEIGHT_BYTES_PER_S
    row_s = 2 * model.parameters / (cores * ROW_FLOPS_PER_CORE)
    # Where the weights alone take the bound, half as long again for rows.
    bound_s = max(DECODE_STEP_S, 1.5 * read_s)
    paced = min(MOST_SEQUENCES, _power_of_two(int((bound_s - read_s) / row_s)))
    if fit < paced:
        return max(1, fit), (
            f"so many of {typical} tokens ({_mb(sequence_bytes)} of KV each) fit beside the adapters' share of the "
            f"{_mb(memory.budget_bytes)} budget; the cores could decode {paced}"
        )
    return max(1, paced), (
        f"so many rows, {MOST_SEQUENCES} at most, decode in {bound_s:.2f} s a step on {cores} cores "
        f"({read_s:.3f} s for the weights, {row_s * 1000:.1f} ms a row); {fit} of {typical} tokens fit the budget"
    )


def _budget(model: ModelNumbers, cores: int, sequences: int) -> tuple[int, str]:
    token_s = 2 * model.parameters / (cores * CHUNK_FLOPS_PER_CORE)
    least = max(_LEAST_TOKENS, sequences)
    paced = min(MOST_TOKENS, _power_of_two(int(MIXED_STEP_S / token_s)))
    if paced < least:
        return least, (
            f"the least that carries {sequences} decodes and some prefill; a step takes {least * token_s:.2f} s at "
            f"{token_s * 1000:.1f} ms a token on {cores} cores"
        )
    return paced, (
        f"a step of so many, {MOST_TOKENS} at most, takes {paced * token_s:.2f} s at {token_s * 1000:.1f} ms a token "
        f"on {cores} cores, under the {MIXED_STEP_S:g} s that a reader may wait for its next token"
    )


def _power_of_two(value: int) -> int:
    """The largest that is not above the value; 1 at least."""
    return 1 << max(0, value.bit_length() - 1) if value > 0 else 1


def _mb(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB" if size < 1 << 30 else f"{size / (1 << 30):.1f} GiB"


__all__ = [
    "CHUNK_FLOPS_PER_CORE",
    "DECODE_STEP_S",
    "MIXED_STEP_S",
    "MOST_SEQUENCES",
    "MOST_TOKENS",
    "ROW_FLOPS_PER_CORE",
    "TYPICAL_TOKENS",
    "WEIGHT_BYTES_PER_S",
    "Choice",
    "EngineSettings",
    "ModelNumbers",
    "derive",
]
