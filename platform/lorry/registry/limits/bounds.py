"""The limits of a quota, checked."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from lorry.errors import InvalidRequest

COUNT_MAX = 2**31 - 1
TOKENS_MAX = 2**53 - 1
"""What JSON's readers still count exactly."""

_BOUNDS = {
    "requests_per_minute": (1, COUNT_MAX),
    "concurrency": (1, COUNT_MAX),
    "queue_length": (0, COUNT_MAX),
    "tokens_per_month": (0, TOKENS_MAX),
    "max_tokens_cap": (1, COUNT_MAX),
}


@dataclass(frozen=True, slots=True)
class LimitValues:
    """``QuotaLimits`` of the API; None limits nothing."""

    requests_per_minute: int | None = None
    concurrency: int | None = None
    queue_length: int | None = None
    tokens_per_month: int | None = None
    max_tokens_cap: int | None = None

    def check(self) -> LimitValues:
        """Itself. Raises InvalidRequest naming the limit that is out of its bounds, or that limits nothing."""
        limits = {name: value for name, value in asdict(self).items() if value is not None}
        for name, value in limits.items():
            low, high = _BOUNDS[name]
            if not low <= value <= high:
                raise InvalidRequest.field(f"limits.{name}", f"{value}; use {low} to {high}")
        if not limits:
            raise InvalidRequest.field("limits", f"none is set; set at least one of {', '.join(_BOUNDS)}")
        if self.queue_length is not None and self.concurrency is None:
            raise InvalidRequest.field(
                "limits.queue_length", "nobody waits where limits.concurrency is not set; set that too"
            )
        return self


__all__ = ["COUNT_MAX", "TOKENS_MAX", "LimitValues"]
