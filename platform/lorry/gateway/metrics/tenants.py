"""Which tenants have series of their own: the largest, and no more than are wanted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

RERANK_S = 600.0
"""How long a ranking holds, so that series do not come and go."""
OTHER = "other"


@dataclass(slots=True)
class Bills:
    requests: int = 0
    prompt: int = 0
    cached: int = 0
    output: int = 0

    def add(self, prompt: int, cached: int, output: int) -> None:
        self.requests += 1
        self.prompt += prompt
        self.cached += cached
        self.output += output


class LargestTenants:
    """Why not one counter a tenant: there may be many thousands. Why not the largest of all at each scrape: a counter
    that goes back reads as a restart, and ``other`` would when a tenant left it.

    So a bill counts where its tenant stands at that moment, in its own series or in ``other``, for ever. At first
    places go to who comes first; each ``RERANK_S`` to those with the most tokens since the ranking before.
    """

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self._most = most
        self._clock = clock
        self._own: dict[str, Bills] = {}
        self._shown: set[str] = set()
        self._recent: Counter[str] = Counter()
        self._rank_at = clock() + RERANK_S
        self._other = Bills()

    def bill(self, tenant: str, prompt: int, cached: int, output: int) -> None:
        if self._clock() >= self._rank_at:
            self._rank()
        self._recent[tenant] += prompt + output
        if tenant not in self._shown and len(self._shown) < self._most:
            self._shown.add(tenant)
        bills = self._own.setdefault(tenant, Bills()) if tenant in self._shown else self._other
        bills.add(prompt, cached, output)

    def shown(self) -> Iterator[tuple[str, Bills]]:
        """Tenant ids that have a series, and OTHER once it has something."""
        yield from ((tenant, self._own[tenant]) for tenant in sorted(self._shown))
        if self._other.requests:
            yield OTHER, self._other

    def _rank(self) -> None:
        best = [tenant for tenant, _ in self._recent.most_common(self._most)]
        spare = self._most - len(best)
        self._shown = {*best, *sorted(self._shown - set(best))[:spare]}
        for tenant in best:
            self._own.setdefault(tenant, Bills())
        self._recent.clear()
        self._rank_at = self._clock() + RERANK_S


__all__ = ["OTHER", "RERANK_S", "Bills", "LargestTenants"]
