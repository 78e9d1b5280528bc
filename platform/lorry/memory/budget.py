"""How the byte budget bounds the two arenas, and the budgets that are refused."""

from __future__ import annotations

from dataclasses import dataclass

from lorry.config import MemoryConfig
from lorry.errors import FieldViolation, InvalidRequest


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """Most KV pages and most adapter chunks that can ever be in use. Both together exceed the budget: the ledger sees
    to it that what is in use does not. ``chunks_per_largest`` chunks hold an adapter of the largest rank."""

    budget_bytes: int
    pages: int
    chunks: int
    page_bytes: int
    chunk_bytes: int
    chunks_per_largest: int


def split_budget(config: MemoryConfig, page_bytes: int, chunk_bytes: int, context_tokens: int) -> MemorySplit:
    """Adapters get at most ``adapter_fraction`` of the budget, leave ``kv_fraction`` of it (and one longest sequence)
    to KV pages, and are no more than every slot at the largest rank could use. KV pages may use all but one largest
    adapter.

    Raises InvalidRequest, naming the numbers, where a setting is out of range or the budget cannot hold
    the largest adapter beside one longest sequence.
    """
    _check_ranges(config, page_bytes, chunk_bytes, context_tokens)
    budget = config.budget_bytes
    largest = -(-config.max_rank // config.chunk_rank)
    longest = -(-context_tokens // config.page_tokens)
    ceiling = int(budget * config.adapter_fraction)
    floor = max(int(budget * config.kv_fraction), longest * page_bytes)
    chunks = min(ceiling // chunk_bytes, max(0, budget - floor) // chunk_bytes, largest * config.max_slots)
    pages = max(0, budget - largest * chunk_bytes) // page_bytes
    bad: list[FieldViolation] = []
    least = _least(config, longest * page_bytes, largest * chunk_bytes)
    if pages < longest:
        need = longest * page_bytes + largest * chunk_bytes
        text = (
            f"{budget} bytes are too few: one sequence of context_tokens = {context_tokens} needs {longest} KV pages "
            f"of {page_bytes} bytes and an adapter of max_rank = {config.max_rank} needs {largest} chunks of "
            f"{chunk_bytes} bytes, together {need}; raise it to {least}, or lower context_tokens or max_rank"
        )
        bad.append(FieldViolation("memory.budget_bytes", text))
    elif chunks < largest:
        left = max(0, budget - floor)
        text = (
            f"{config.adapter_fraction} of budget_bytes = {budget} is {ceiling} bytes, and {left} are left beside the "
            f"KV pages' floor, but an adapter of max_rank = {config.max_rank} needs {largest} chunks of {chunk_bytes} "
            f"bytes = {largest * chunk_bytes}; raise budget_bytes to {least}, or raise adapter_fraction, or lower "
            "kv_fraction or max_rank"
        )
        bad.append(FieldViolation("memory.adapter_fraction", text))
    if bad:
        raise InvalidRequest("; ".join(f"{v.field}: {v.description}" for v in bad), violations=bad)
    return MemorySplit(budget, pages, chunks, page_bytes, chunk_bytes, largest)


def _least(config: MemoryConfig, longest_bytes: int, largest_bytes: int) -> int:
    """The smallest budget that is taken with these fractions, but for the rounding of the floor."""
    most, floor = config.adapter_fraction, config.kv_fraction
    least = max(longest_bytes + largest_bytes, int(largest_bytes / most), int(largest_bytes / (1 - floor)))
    while min(int(least * most), least - int(least * floor)) < largest_bytes:
        least += 1
    return least


def _check_ranges(config: MemoryConfig, page_bytes: int, chunk_bytes: int, context_tokens: int) -> None:
    sizes = {
        "memory.budget_bytes": config.budget_bytes,
        "memory.page_tokens": config.page_tokens,
        "memory.chunk_rank": config.chunk_rank,
        "memory.max_slots": config.max_slots,
        "memory.max_rank": config.max_rank,
        "page_bytes": page_bytes,
        "chunk_bytes": chunk_bytes,
        "context_tokens": context_tokens,
    }
    bad = [FieldViolation(name, f"{value} must be at least 1") for name, value in sizes.items() if value < 1]
    if not 0.0 < config.adapter_fraction < 1.0:
        bad.append(FieldViolation("memory.adapter_fraction", f"{config.adapter_fraction} must lie between 0 and 1"))
    if not 0.0 <= config.kv_fraction < 1.0:
        bad.append(FieldViolation("memory.kv_fraction", f"{config.kv_fraction} must be at least 0 and under 1"))
    if bad:
        raise InvalidRequest("; ".join(f"{v.field}: {v.description}" for v in bad), violations=bad)


__all__ = ["MemorySplit", "split_budget"]
