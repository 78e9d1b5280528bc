"""What goes into the scheduler, and what comes out of a step for each request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic

from lorry.errors import LorryError
from lorry.ids import AdapterKey, RequestId, TenantId
from lorry.request import OutputParams, SamplingParams, StoppingParams, TokenLogprobs
from lorry.residency.host import R


@dataclass(frozen=True, slots=True)
class ScheduledRequest(Generic[R]):
    """``ref`` None is the base. ``deadline`` and ``queue_deadline`` (latest start of the first step) are
    readings of the scheduler's clock, None is no limit; so is ``ttft_deadline``, the latest first token.
    ``reject_cold``: refuse instead of fetching. ``priority``: the highest is preempted last and, within its tenant,
    admitted first; 0 is normal. ``weight``: how many turns its tenant has for one of a tenant of
    weight 1; the newest of a tenant's live requests says it.

    ``cache_salt`` (empty: nothing cached is used or kept) and ``cache_scope`` enter the key of every KV block.
    ``choice`` is this sequence's number among the choices of one request; ``after`` names the request id of choice 0,
    whose prompt pages it shares: it waits until that one's prompt is computed. ``end_ids`` end it in place of the
    base's, None: those do; ``tokenizer_sha256`` is in its keys in place of the base's, "": that is.
    """

    request_id: RequestId
    tenant: TenantId
    prompt: tuple[int, ...] = field(repr=False)
    ref: R | None
    sampling: SamplingParams
    stopping: StoppingParams
    deadline: float | None = None
    queue_deadline: float | None = None
    reject_cold: bool = False
    ttft_deadline: float | None = None
    priority: int = 0
    output: OutputParams = OutputParams()
    cache_salt: bytes = field(default=b"", repr=False)
    cache_scope: str = ""
    choice: int = 0
    after: RequestId | None = None
    end_ids: tuple[int, ...] | None = None
    tokenizer_sha256: str = ""
    weight: int = 1

    @property
    def shared(self) -> tuple[object, ...]:
        """What all choices of one request have in common; on it rests that they may use one another's pages."""
        adapter = None if self.ref is None else self.ref.key
        return (self.tenant, self.prompt, adapter, self.cache_salt, self.cache_scope)


@dataclass(frozen=True, slots=True)
class FirstStep:
    """Comes with a request's first token. ``tier``: base, device, host, disk or object_store, where the
    adapter was when the request came. ``queue_s``: from then to its first step, fetch included;
    ``adapter_load_s``: the part of it until the adapter was in host memory."""

    tier: str
    queue_s: float
    adapter_load_s: float


@dataclass(frozen=True, slots=True)
class Ending:
    """``reason``: ``stop`` or ``length``. ``output_tokens`` counts the stop id. Seconds: ``prefill_s`` from
    the first step to the first token, ``ttft_s`` from arrival to the first token, ``decode_s`` from the
    first token to the last. Distinct adapters (the base is one) are over the steps it was in."""

    reason: str
    matched_stop_id: int | None
    prompt_tokens: int
    output_tokens: int
    cached_prompt_tokens: int
    prefill_s: float
    ttft_s: float
    decode_s: float
    max_distinct_adapters: int
    min_distinct_adapters: int


@dataclass(slots=True)
class SequenceUpdate:
    """One request's news from one step. Not frozen, as one is made for every running request in every step.

    ``tokens`` are new output ids to print: a stop id is not among them, it is ``finish.matched_stop_id``.
    ``adapter`` is what the runner read from the device's slot table. At most one of ``finish`` and
    ``error`` is set, and nothing follows it. ``logprobs`` are of ``tokens``; ``prompt_logprobs`` come in order, over
    one or several updates up to the one with ``first``, each once.
    """

    request_id: RequestId
    tokens: tuple[int, ...] = field(default=(), repr=False)
    adapter: AdapterKey | None = None
    first: FirstStep | None = None
    finish: Ending | None = None
    error: LorryError | None = None
    logprobs: tuple[TokenLogprobs, ...] = field(default=(), repr=False)
    prompt_logprobs: tuple[TokenLogprobs, ...] = field(default=(), repr=False)


__all__ = ["Ending", "FirstStep", "ScheduledRequest", "SequenceUpdate"]
