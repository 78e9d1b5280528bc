"""What a gateway still does while the registry does not answer, since rights taken back meanwhile are unknown to it."""

from __future__ import annotations

from dataclasses import dataclass

from lorry.config import GatewayConfig
from lorry.errors import Unavailable

_DEFAULT_S = {"strict": 5.0, "available": 300.0}
RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Staleness:
    """From ``seconds`` without an answer on, new calls are refused and, where ``cuts``, live ones end. It is over as
    soon as the registry answers. Ages are seconds."""

    seconds: float
    cuts: bool

    @classmethod
    def of(cls, config: GatewayConfig) -> Staleness:
        """Raises ValueError for a policy that is none."""
        if config.staleness not in _DEFAULT_S:
            raise ValueError(f"staleness: {config.staleness!r} is no policy; use strict or available")
        seconds = _DEFAULT_S[config.staleness] if config.staleness_seconds is None else config.staleness_seconds
        return cls(seconds, config.staleness == "strict")

    def require_fresh(self, age: float) -> None:
        """For a new call. Raises Unavailable."""
        if age >= self.seconds:
            raise Unavailable(
                f"registry: it has not answered for {age:.0f} s, so rights cannot be checked; try again",
                retry_after_s=RETRY_S,
            )

    def require_live(self, age: float) -> None:
        """For a live one. Raises Unavailable."""
        if self.cuts:
            self.require_fresh(age)


DEFAULT_STALENESS = Staleness.of(GatewayConfig())

__all__ = ["DEFAULT_STALENESS", "RETRY_S", "Staleness"]
