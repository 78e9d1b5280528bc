"""One line at the end of every generation."""

from __future__ import annotations

import logging

from lorry.gateway.observe.story import Story
from lorry.logs import fields, level_of

LOGGER = "lorry.gateway.requests"
_log = logging.getLogger(LOGGER)


def listens(code: str) -> bool:
    """Whether anybody wants the line of a request that ended with this gRPC code."""
    return _log.isEnabledFor(level_of(code))


def log(story: Story) -> None:
    _log.log(
        level_of(story.code),
        "generation %s",
        story.outcome,
        extra=fields(
            request_id=story.request_id,
            trace_id=None if story.trace is None else story.trace.trace_id,
            tenant=story.tenant,
            principal=story.principal,
            model=story.model,
            adapter=story.adapter,
            version=story.version or None,
            digest=story.sha256,
            base=story.base,
            alias=story.alias,
            canary=story.canary or None,
            outcome=story.outcome,
            code=story.code,
            transport=story.transport,
            stream=story.stream,
            prompt_tokens=story.prompt_tokens,
            cached_prompt_tokens=story.cached_prompt_tokens or None,
            output_tokens=story.output_tokens,
            seconds=_rounded(story.ended_s),
            queue_s=_rounded(story.queue_s),
            adapter_load_s=_rounded(story.adapter_load_s or None),
            tier=story.tier,
            ttft_s=_rounded(story.ttft_s),
            replica=story.replica,
            engine_request_id=story.engine_request_id,
            ledger_id=story.ledger_id,
        ),
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


__all__ = ["LOGGER", "listens", "log"]
