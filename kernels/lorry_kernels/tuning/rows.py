"""Rows of the table and how one is chosen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from lorry_kernels.tuning.configs import Config

Phase = Literal["decode", "prefill"]

RANK_BUCKETS = (16, 64, 256, 1024)
"""Ranks up to which a row of the table holds. A site of three slices at rank 256 has 768 ranks of A."""


@dataclass(frozen=True, slots=True)
class Row:
    """``config`` for cards whose name begins with ``arch`` ("sm_90", "sm", "gfx"), ranks up to ``rank``, K up to ``k``
    and N up to ``n``; None: any. ``note`` says where it comes from."""

    arch: str
    op: str
    phase: Phase
    rank: int
    k: int | None
    n: int | None
    config: Config
    note: str = ""

    def fits(self, arch: str, op: str, k: int, n: int, rank: int, phase: str) -> bool:
        return (
            arch.startswith(self.arch)
            and (op, phase) == (self.op, self.phase)
            and rank <= self.rank
            and (self.k is None or k <= self.k)
            and (self.n is None or n <= self.n)
        )

    @property
    def breadth(self) -> tuple[int, float, float, int]:
        """The narrowest row that fits is taken: of the most exact card, then the least K, N and rank."""
        return (-len(self.arch), self.k or float("inf"), self.n or float("inf"), self.rank)


def rank_bucket(rank: int) -> int:
    """The least of ``RANK_BUCKETS`` that holds ``rank``; the last for more. Raises ValueError below 1."""
    if rank < 1:
        raise ValueError(f"rank: is {rank}, must be at least 1")
    return next((bucket for bucket in RANK_BUCKETS if rank <= bucket), RANK_BUCKETS[-1])


def choose(rows: Iterable[Row], arch: str, op: str, k: int, n: int, rank: int, phase: str) -> Row | None:
    """The narrowest that fits; of equals the first."""
    fitting = [row for row in rows if row.fits(arch, op, k, n, rank, phase)]
    return min(fitting, key=lambda row: row.breadth, default=None)


__all__ = ["RANK_BUCKETS", "Phase", "Row", "choose", "rank_bucket"]
