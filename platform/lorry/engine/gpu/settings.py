"""What an engine on a GPU is set to, and why: as ``lorry.engine.settings`` for a CPU, from what the card has. No torch.

Starting points, none of them measured here. Where others' defaults are the source it is named: SGLang sizes prefill
chunks and batches by a card's memory, and gives the host's tier twice what the device has; vLLM's server takes 2,048
tokens a step below 70 GiB and 8,192 above, and 256 sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lorry.config import MemoryConfig, RestartConfig, TierConfig
from lorry.engine.gpu.buckets import decode_buckets
from lorry.engine.gpu.card import Card
from lorry.engine.gpu.forms import ALWAYS
from lorry.engine.settings import MOST_SEQUENCES, TYPICAL_TOKENS, Choice, EngineSettings, ModelNumbers, derive
from lorry.errors import InvalidRequest

_GIB = 1 << 30
TOKENS_BY_MEMORY = ((35 * _GIB, 2048), (70 * _GIB, 4096))
"""(below so many bytes of the card, tokens of a step): half of SGLang's for the cards between, as vLLM's server has."""
MOST_TOKENS = 8192
"""Of a step: what prefill kernels are tuned for, and a few hundred milliseconds of an 8B model on the fastest cards."""
ROOM = 0.85
"""Of the free memory, what weights, KV and adapters may be reckoned with before the profiling pass has looked."""
HOST_TIMES_DEVICE = 2.0
HOST_SHARE = 0.25
"""Of the machine's memory, at most, for adapters' images: it is pinned, so nothing else can have it."""
READ_BYTES_PER_S = 2.5e8
"""Of weights, from a slow disk."""
CAPTURE_S = 1.0
"""Of one graph; all are captured twice, since the profiling pass needs them too."""
COMPILE_S = 300.0
"""Of all kernels, where Triton's cache is empty."""


@dataclass(frozen=True, slots=True)
class CardSettings:
    """``engine`` as on a CPU; beside it what a GPU alone derives. ``budget`` 0 is a profiling pass."""

    card: Card
    dtype: str
    engine: EngineSettings
    budget: Choice
    max_slots: Choice
    host_bytes: Choice
    start_s: Choice

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (self.budget, *self.engine.choices, self.max_slots, self.host_bytes, self.start_s)

    def __str__(self) -> str:
        """One line; the reasons are in the state."""
        values = {choice.name: str(choice.value) for choice in self.choices}
        if not self.budget.value:
            values[self.budget.name] = "auto"
        said = ", ".join(f"{name} {value}" for name, value in {"dtype": self.dtype, **values}.items())
        return f"settings for {self.card.name} ({self.card.total_bytes / _GIB:.0f} GiB): {said}"


def derive_for_card(
    model: ModelNumbers,
    memory: MemoryConfig,
    card: Card,
    cores: int,
    machine_bytes: int,
    context_tokens: int,
    dtype: str,
    given: Mapping[str, int | None] | None = None,
) -> CardSettings:
    """``memory.budget_bytes`` 0: a profiling pass decides. ``machine_bytes``: of the host. ``given`` as ``derive``'s,
    and ``max_slots``, ``host_bytes``, ``start_s``. Raises InvalidRequest where the card does not even hold the
    weights."""
    chosen = {name: value for name, value in (given or {}).items() if value is not None}
    weights = model.parameters * model.weight_bytes
    room = memory.budget_bytes or int(card.free_bytes * ROOM) - weights
    if room <= 0:
        raise InvalidRequest.field(
            "device",
            f"the base's weights take {_gib(weights)} in {dtype} and {card.name} has {_gib(card.free_bytes)} of "
            f"{_gib(card.total_bytes)} free; use a larger card or a smaller base",
        )
    model = replace(model, state_bytes=model.weight_bytes)
    tokens, why_tokens = _tokens(card)
    typical = min(TYPICAL_TOKENS, context_tokens, model.context_tokens)
    sequences, why_sequences = _sequences(model, memory, room, typical)
    derived = {"max_sequences": sequences, "token_budget": tokens, "prefill_chunk_tokens": tokens}
    sequences = chosen.get("max_sequences", sequences)
    derived["token_budget"] = max(derived["token_budget"], sequences)
    derived["prefill_chunk_tokens"] = chosen.get("token_budget", derived["token_budget"])
    common = ("max_sequences", "token_budget", "prefill_chunk_tokens", "page_tokens", "max_rank", "threads")
    own = {name: value for name, value in chosen.items() if name in common}
    engine = derive(model, replace(memory, budget_bytes=room), cores, context_tokens, {**derived, **own})
    why = {
        "max_sequences": why_sequences,
        "token_budget": why_tokens,
        "prefill_chunk_tokens": "the token budget: decodes have their share of a step first anyway",
    }
    engine = replace(
        engine,
        **{name: replace(getattr(engine, name), why=text) for name, text in why.items() if name not in chosen},
    )
    auto = "what a profiling pass leaves: the largest steps run once, and all that they do not take is used"
    return CardSettings(
        card,
        dtype,
        engine,
        Choice("memory_budget", memory.budget_bytes, "bytes", "as the operator chose" if memory.budget_bytes else auto),
        _choose(
            chosen, "max_slots", "adapters on the device", sequences, "so that each running sequence may have its own"
        ),
        _choose(chosen, "host_bytes", "bytes of host memory for adapters", *_host(memory, room, machine_bytes)),
        _choose(chosen, "start_s", "seconds for a start", *_start(weights, sequences)),
    )


def _choose(given: Mapping[str, int], name: str, unit: str, value: int, why: str) -> Choice:
    if name not in given:
        return Choice(name, value, unit, why)
    if given[name] < 1:
        raise InvalidRequest.field(name, f"{given[name]} must be at least 1")
    return Choice(name, given[name], unit, "as the operator chose")


def _tokens(card: Card) -> tuple[int, str]:
    for below, tokens in TOKENS_BY_MEMORY:
        if card.total_bytes < below:
            return tokens, f"for a card below {_gib(below)}: a larger step takes activations that KV could have"
    return MOST_TOKENS, f"for a card of {_gib(TOKENS_BY_MEMORY[-1][0])} or more"


def _sequences(model: ModelNumbers, memory: MemoryConfig, room: int, typical: int) -> tuple[int, str]:
    each = typical * model.kv_elements_per_token * model.state_bytes
    fit = int(room * (1 - memory.adapter_fraction)) // each
    if fit < MOST_SEQUENCES:
        return max(1, fit), (
            f"so many of {typical} tokens fit beside the adapters' share of about {_gib(room)} for KV and adapters"
        )
    return MOST_SEQUENCES, f"the most that are scheduled; {fit} of {typical} tokens would fit about {_gib(room)}"


def _host(memory: MemoryConfig, room: int, machine_bytes: int) -> tuple[int, str]:
    wanted = int(room * memory.adapter_fraction * HOST_TIMES_DEVICE)
    most = int(machine_bytes * HOST_SHARE)
    least = TierConfig(Path()).host_bytes
    if wanted <= most:
        return max(wanted, least), f"{HOST_TIMES_DEVICE:g} times what adapters may have on the card, or the least"
    return max(most, least), f"{HOST_SHARE:g} of the machine's {_gib(machine_bytes)}, since it is pinned, or the least"


def _start(weights: int, sequences: int) -> tuple[int, str]:
    graphs = len(decode_buckets(sequences)) * (len(ALWAYS) + 1)
    read_s, captures_s = weights / READ_BYTES_PER_S, 2 * graphs * CAPTURE_S
    most = int(RestartConfig().start_s + read_s + captures_s + COMPILE_S)
    return most, (
        f"at the worst {read_s:.0f} s to read the weights, {COMPILE_S:.0f} s to compile the kernels and "
        f"{captures_s:.0f} s for {graphs} graphs, twice; a start that takes longer hangs and is ended"
    )


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"


__all__ = ["MOST_TOKENS", "CardSettings", "derive_for_card"]
