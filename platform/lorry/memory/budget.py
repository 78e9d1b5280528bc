"""How the byte budget is split at start, and the budgets that are refused."""

from __future__ import annotations

from dataclasses import dataclass

from lorry.config import MemoryConfig
from lorry.errors import FieldViolation, InvalidRequest


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """Sizes of the two arenas. ``chunks_per_largest`` chunks hold an adapter of the largest rank."""

    pages: int
    chunks: int
    page_bytes: int
    chunk_bytes: int
    chunks_per_largest: int

    @property
    def bytes(self) -> int:
        return self.pages * self.page_bytes + self.chunks * self.chunk_bytes


def split_budget(config: MemoryConfig, page_bytes: int, chunk_bytes: int, context_tokens: int) -> MemorySplit:
    """Adapters get at most ``adapter_fraction`` of the budget, and no more than every slot at the largest
    rank could use; KV pages get the rest.

    Raises InvalidRequest, naming the numbers, where a setting is out of range or the budget cannot hold
    the largest adapter beside one longest sequence.
    """
    _check_ranges(config, page_bytes, chunk_bytes, context_tokens)
    largest = -(-config.max_rank // config.chunk_rank)
    longest = -(-context_tokens // config.page_tokens)
    ceiling = int(config.budget_bytes * config.adapter_fraction)
    chunks = min(ceiling // chunk_bytes, largest * config.max_slots)
    pages = (config.budget_bytes - chunks * chunk_bytes) // page_bytes
    bad: list[FieldViolation] = []
    if chunks < largest:
        bad.append(
            FieldViolation(
                "memory.adapter_fraction",
                f"{config.adapter_fraction} of budget_bytes = {config.budget_bytes} is {ceiling} bytes, but an adapter "
                f"of max_rank = {config.max_rank} needs {largest} chunks of {chunk_bytes} bytes = "
                f"{largest * chunk_bytes}; raise budget_bytes or adapter_fraction, or lower max_rank",
            )
        )
    if pages < longest:
        bad.append(
            FieldViolation(
                "memory.budget_bytes",
                f"{config.budget_bytes} leaves {pages} KV pages of {page_bytes} bytes beside {chunks} adapter chunks, "
                f"but one sequence of context_tokens = {context_tokens} needs {longest} pages = "
                f"{longest * page_bytes} bytes; raise budget_bytes, or lower adapter_fraction or context_tokens",
            )
        )
    if bad:
        raise InvalidRequest("; ".join(f"{v.field}: {v.description}" for v in bad), violations=bad)
    return MemorySplit(pages, chunks, page_bytes, chunk_bytes, largest)


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
    if bad:
        raise InvalidRequest("; ".join(f"{v.field}: {v.description}" for v in bad), violations=bad)


__all__ = ["MemorySplit", "split_budget"]
