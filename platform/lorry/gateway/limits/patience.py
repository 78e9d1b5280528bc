"""How long a request waits for its turn."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lorry.engine.contract import EngineRequest
from lorry.errors import DeadlineExceeded, LorryError, QueueTimeout, TtftTimeout

_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Patience:
    """Of one request, ``since`` (seconds of a clock that never goes back)."""

    request: EngineRequest
    since: float

    def left(self, now: float) -> float | None:
        """Seconds until the first of its times is over; None for never."""
        request = self.request
        times = (request.deadline_s, request.queue_timeout_s, request.ttft_timeout_s)
        known = [time for time in times if time is not None]
        return max(0.0, self.since + min(known) - now) if known else None

    def over(self) -> LorryError:
        """What a request is told whose first time is over."""
        request = self.request
        deadline, queue, ttft = (
            float("inf") if time is None else time
            for time in (request.deadline_s, request.queue_timeout_s, request.ttft_timeout_s)
        )
        if deadline <= min(queue, ttft):
            return DeadlineExceeded("the deadline passed while the request waited for its quota; allow more time")
        if queue <= ttft:
            return QueueTimeout(
                f"queue_timeout: {queue:g} s passed while the request waited for its quota; allow more, or try again",
                retry_after_s=_RETRY_S,
            )
        return TtftTimeout(
            f"ttft_timeout: {ttft:g} s passed while the request waited for its quota; allow more, or try again",
            retry_after_s=_RETRY_S,
        )

    def after(self, now: float) -> EngineRequest:
        """The request with what is left of its times. Raises what ``over`` answers where one is over."""
        waited = now - self.since
        left = self.left(now)
        if left is not None and left <= 0.0:
            raise self.over()
        request = self.request
        return replace(
            request,
            deadline_s=_less(request.deadline_s, waited),
            queue_timeout_s=_less(request.queue_timeout_s, waited),
            ttft_timeout_s=_less(request.ttft_timeout_s, waited),
        )


def _less(seconds: float | None, waited: float) -> float | None:
    return None if seconds is None else seconds - waited


__all__ = ["Patience"]
