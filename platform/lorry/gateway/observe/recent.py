"""A generation's end as tenants and operators are shown it."""

from __future__ import annotations

from lorry.gateway.observe.watch import Ended
from lorry.registry.fleet.desk import NAME_MAX, EndedRequest


def ended_request(ended: Ended, now: float) -> EndedRequest:
    """``now``: Unix seconds."""
    admitted, caller, call, message = ended.admitted, ended.noted.caller, ended.call, ended.message
    started = call.relay.started if call is not None and call.relay.answers else None
    finished, resolution = ended.finished, None if admitted is None else admitted.resolution
    request_id = "" if message is None else message.request_id
    handed = 0 if call is None else call.handed
    return EndedRequest(
        request_id=(request_id if admitted is None else admitted.answer.request_id)[:NAME_MAX],
        tenant="" if caller is None else caller.tenant,
        tenant_name="" if caller is None else caller.tenant_name,
        model="" if message is None else message.model[:NAME_MAX],
        version="" if resolution is None else resolution.version_name,
        adapter_sha256="" if resolution is None else resolution.sha256,
        outcome=ended.outcome,
        replica="" if started is None else started.provenance.replica,
        started_at=now - (ended.ended - ended.began),
        ended_at=now,
        queue_s=None if started is None else started.queue_s,
        adapter_load_s=None if started is None else started.adapter_load_s,
        prefill_s=None if finished is None else finished.prefill_s,
        ttft_s=None if finished is None else finished.ttft_s,
        decode_s=None if finished is None else finished.decode_s,
        prompt_tokens=0 if admitted is None else admitted.answer.prompt_tokens,
        output_tokens=handed if finished is None else finished.output_tokens,
    )


__all__ = ["ended_request"]
