"""How the byte budget bounds pages, chunks and extras, and the budgets that are refused."""

from __future__ import annotations

from dataclasses import dataclass

from lorry.config import MemoryConfig
from lorry.errors import FieldViolation, InvalidRequest


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """Most KV pages, adapter chunks and bytes of extras that can ever be in use. Together they exceed the budget: the
    ledger sees to it that what is in use does not. ``chunks_per_largest`` chunks hold an adapter of the largest rank;
    ``extras_bytes`` is the most that all adapters' extras take, and so one adapter's; ``adapter_bytes`` the most that
    chunks and extras take together."""

    budget_bytes: int
    pages: int
    chunks: int
    page_bytes: int
    chunk_bytes: int
    chunks_per_largest: int
    extras_bytes: int
    adapter_bytes: int


def split_budget(
    config: MemoryConfig, page_bytes: int, chunk_bytes: int, context_tokens: int, largest_chunks: int | None = None
) -> MemorySplit:
    """The floor of KV pages is ``kv_fraction`` of the budget, one longest sequence at least; adapters leave it, chunks
    and extras together. Chunks take at most ``adapter_fraction`` of the budget, and are no more than every slot at the
    largest rank could use. Extras take at most ``extras_fraction`` of it, and no more than floor and the largest rank
    leave: so the largest adapter there can be, all extras included, always finds room beside one longest sequence.
    KV pages may use all but the chunks of one largest adapter. That takes ``largest_chunks``, or, where chunks are rank
    rows of every site (None), ``ceil(max_rank / chunk_rank)``.

    Raises InvalidRequest, naming the numbers, where a setting is out of range or the budget cannot hold
    the largest rank beside one longest sequence.
    """
    _check_ranges(config, page_bytes, chunk_bytes, context_tokens)
    budget = config.budget_bytes
    largest, longest = _largest(config, largest_chunks), _longest(config, context_tokens)
    ceiling = int(budget * config.adapter_fraction)
    floor = max(int(budget * config.kv_fraction), longest * page_bytes)
    left = max(0, budget - floor)
    chunks = min(ceiling // chunk_bytes, left // chunk_bytes, largest * config.max_slots)
    pages = max(0, budget - largest * chunk_bytes) // page_bytes
    bad: list[FieldViolation] = []
    least = least_budget(config, page_bytes, chunk_bytes, context_tokens, largest_chunks)
    if pages < longest:
        need = longest * page_bytes + largest * chunk_bytes
        text = (
            f"{budget} bytes are too few: one sequence of context_tokens = {context_tokens} needs {longest} KV pages "
            f"of {page_bytes} bytes and an adapter of max_rank = {config.max_rank} needs {largest} chunks of "
            f"{chunk_bytes} bytes, together {need}; raise it to {least}, or lower context_tokens or max_rank"
        )
        bad.append(FieldViolation("memory.budget_bytes", text))
    elif chunks < largest:
        text = (
            f"{config.adapter_fraction} of budget_bytes = {budget} is {ceiling} bytes, and {left} are left beside the "
            f"KV pages' floor, but an adapter of max_rank = {config.max_rank} needs {largest} chunks of {chunk_bytes} "
            f"bytes = {largest * chunk_bytes}; raise budget_bytes to {least}, or raise adapter_fraction, or lower "
            "kv_fraction or max_rank"
        )
        bad.append(FieldViolation("memory.adapter_fraction", text))
    if bad:
        raise InvalidRequest("; ".join(f"{v.field}: {v.description}" for v in bad), violations=bad)
    extras = min(int(budget * config.extras_fraction), left - largest * chunk_bytes)
    return MemorySplit(budget, pages, chunks, page_bytes, chunk_bytes, largest, extras, left)


def least_budget(
    config: MemoryConfig, page_bytes: int, chunk_bytes: int, context_tokens: int, largest_chunks: int | None = None
) -> int:
    """The smallest ``budget_bytes`` that ``split_budget`` takes with all else as in ``config``, but for the rounding of
    the floor."""
    longest_bytes = _longest(config, context_tokens) * page_bytes
    largest_bytes = _largest(config, largest_chunks) * chunk_bytes
    most, floor = config.adapter_fraction, config.kv_fraction
    least = max(longest_bytes + largest_bytes, int(largest_bytes / most), int(largest_bytes / (1 - floor)))
    while min(int(least * most), least - int(least * floor)) < largest_bytes:
        least += 1
    return least


def _largest(config: MemoryConfig, chunks: int | None) -> int:
    return -(-config.max_rank // config.chunk_rank) if chunks is None else chunks


def _longest(config: MemoryConfig, context_tokens: int) -> int:
    return -(-context_tokens // config.page_tokens)


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
    for name in ("kv_fraction", "extras_fraction"):
        value = getattr(config, name)
        if not 0.0 <= value < 1.0:
            bad.append(FieldViolation(f"memory.{name}", f"{value} must be at least 0 and under 1"))
    if bad:
        raise InvalidRequest("; ".join(f"{v.field}: {v.description}" for v in bad), violations=bad)


__all__ = ["MemorySplit", "least_budget", "split_budget"]
