"""What rows of the ledger add up to, by hour. No SQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from lorry.registry.db.tables import UsageEvent
from lorry.registry.usage.buckets import DURATION_S, INTER_TOKEN_S, TTFT_S, bucket_of, empty
from lorry.registry.usage.events import Usage


class Group(NamedTuple):
    """The key of a rollup row; its order is the order in which rows are locked. ``hour``: its beginning, of the hour
    that the requests ended in. ``model``: the bare adapter name, or the base's."""

    tenant_id: str
    hour: datetime
    model: str
    version: int
    key_id: str
    outcome: str


@dataclass(slots=True)
class Sums:
    """A histogram counts those requests that have the time; every one has a duration."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    output_tokens: int = 0
    ttft: list[int] = field(default_factory=lambda: empty(TTFT_S))
    inter_token: list[int] = field(default_factory=lambda: empty(INTER_TOKEN_S))
    duration: list[int] = field(default_factory=lambda: empty(DURATION_S))

    def count(self, row: Usage | UsageEvent) -> None:
        self.requests += 1
        self.prompt_tokens += row.prompt_tokens
        self.cached_prompt_tokens += row.cached_prompt_tokens
        self.output_tokens += row.output_tokens
        if row.ttft_s is not None:
            self.ttft[bucket_of(TTFT_S, row.ttft_s)] += 1
        if row.decode_s is not None and row.output_tokens > 1:
            self.inter_token[bucket_of(INTER_TOKEN_S, row.decode_s / (row.output_tokens - 1))] += 1
        self.duration[bucket_of(DURATION_S, (row.ended_at - row.started_at).total_seconds())] += 1

    def plus(self, other: Sums) -> Sums:
        return Sums(
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.cached_prompt_tokens + other.cached_prompt_tokens,
            self.output_tokens + other.output_tokens,
            _added(self.ttft, other.ttft),
            _added(self.inter_token, other.inter_token),
            _added(self.duration, other.duration),
        )


def hour_of(time: datetime) -> datetime:
    """The beginning of its hour, UTC."""
    return time.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def sums_of(rows: Iterable[Usage | UsageEvent], bases: Mapping[str, str]) -> dict[Group, Sums]:
    """``bases``: names of bases by digest, for rows without an adapter; one that is unknown goes by its digest."""
    found: dict[Group, Sums] = {}
    for row in rows:
        model = row.adapter or bases.get(row.base_sha256, row.base_sha256)
        group = Group(row.tenant_id, hour_of(row.ended_at), model, row.version, row.key_id, row.outcome)
        found.setdefault(group, Sums()).count(row)
    return found


def _added(one: list[int], other: list[int]) -> list[int]:
    return [a + b for a, b in zip(one, other, strict=True)]


__all__ = ["Group", "Sums", "hour_of", "sums_of"]
