"""What the scheduler refuses: configurations, requests, and rows of a step's result."""

from __future__ import annotations

from lorry.config import SchedulerConfig
from lorry.errors import (
    DeadlineExceeded,
    FieldViolation,
    InternalError,
    InvalidRequest,
    LorryError,
    SlotIntegrity,
    by_reason,
)
from lorry.memory import MemoryLedger
from lorry.request import WEIGHT_MAX
from lorry.residency.host import R
from lorry.scheduler.plan import SequenceResult, SequenceStep
from lorry.scheduler.requests import ScheduledRequest

_REASONS = by_reason()


def check_config(config: SchedulerConfig) -> None:
    """Raises InvalidRequest for limits under which a running sequence could stand still."""
    bad = [
        FieldViolation(f"scheduler.{name}", f"{getattr(config, name)} must be at least 1")
        for name in (
            "max_sequences",
            "token_budget",
            "prefill_chunk_tokens",
            "max_queue",
            "max_queue_per_tenant",
            "context_tokens",
        )
        if getattr(config, name) < 1
    ]
    if config.token_budget < config.max_sequences:
        text = (
            f"{config.token_budget} is under max_sequences = {config.max_sequences}, each of which decodes a token a "
            "step; raise it, or lower max_sequences"
        )
        bad.append(FieldViolation("scheduler.token_budget", text))
    if bad:
        raise InvalidRequest("; ".join(f"{v.field}: {v.description}" for v in bad), violations=bad)


def check_request(request: ScheduledRequest[R], config: SchedulerConfig, ledger: MemoryLedger, now: float) -> int:
    """The most positions that the request can have. Raises InvalidRequest, naming the limit, for one that can
    never run, and DeadlineExceeded for one that is late already."""
    prompt, wanted = len(request.prompt), request.stopping.max_tokens
    if not prompt:
        raise InvalidRequest.field("prompt", "is empty; give at least one token")
    if wanted < 1:
        raise InvalidRequest.field("stopping.max_tokens", f"is {wanted}; give at least 1")
    if not 1 <= request.weight <= WEIGHT_MAX:
        raise InvalidRequest.field("weight", f"is {request.weight}; give 1 to {WEIGHT_MAX}")
    tokens = prompt + wanted
    if tokens > config.context_tokens:
        raise InvalidRequest.field(
            "stopping.max_tokens",
            f"{prompt} prompt tokens and {wanted} output tokens are {tokens}, over context_tokens = "
            f"{config.context_tokens}; shorten the prompt or ask for fewer tokens",
        )
    pages, arena = ledger.pages_for(tokens), ledger.split.pages
    if pages > arena:
        raise InvalidRequest.field(
            "stopping.max_tokens",
            f"{tokens} tokens need {pages} KV pages and this engine has {arena}; shorten the prompt or ask for "
            "fewer tokens",
        )
    if request.deadline is not None and request.deadline <= now:
        raise DeadlineExceeded(f"the deadline was {now - request.deadline:.3f} s ago when the request came")
    return tokens


def fault_of(row: SequenceStep, result: SequenceResult | None) -> LorryError | None:
    """Why a row's result cannot be used. Its adapter is compared here as well as by the gateway."""
    if result is None:
        if not row.logit_rows and not row.score_rows:
            return None
        return InternalError(f"sequence {row.sequence} has no result although its step ran")
    if result.fault is not None:
        text = f"sequence {row.sequence} ended by a fault of its step: {result.fault}"
        return _REASONS.get(result.fault, InternalError)(text)
    if result.adapter != row.adapter:
        return SlotIntegrity(f"slot {row.slot} holds adapter {result.adapter} but {row.adapter} was planned")
    if len(result.tokens) != row.logit_rows:
        return InternalError(f"sequence {row.sequence}: {len(result.tokens)} tokens for {row.logit_rows} logit rows")
    if len(result.prompt_logprobs) != row.score_rows:
        return InternalError(
            f"sequence {row.sequence}: {len(result.prompt_logprobs)} prompt logprobs for {row.score_rows} score rows"
        )
    return None


__all__ = ["check_config", "check_request", "fault_of"]
