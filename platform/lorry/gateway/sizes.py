"""How much one request may ask for, once its prompt has been counted."""

from __future__ import annotations

from dataclasses import dataclass

from lorry.api.v1 import generate_pb2 as pb
from lorry.errors import InvalidRequest
from lorry.gateway.checks import CheckedFields, Violations

CHOICES_TOKENS_MAX = 1 << 16
"""Output tokens of all choices of one request together, where there are several."""
LOGPROBS_MAX = 1 << 18
"""Pairs of id and logprob in one answer. A pair is at most 12 bytes on the wire, so a whole answer fits the 4 MiB that
gRPC clients take by default, and what waits for a slow reader is bounded."""


@dataclass(frozen=True, slots=True)
class Room:
    """``context``: tokens of prompt and one choice together. ``cap``: the deployment's most output tokens of one
    request, all choices together; None is no cap. ``quota``: the same by the quotas of the tenant and its adapter; who
    asks for more than that is not refused, but gets so much."""

    context: int
    cap: int | None
    quota: int | None = None

    def max_tokens(
        self, fields: CheckedFields, prompt_field: str, prompt: int
    ) -> tuple[int, pb.MaxTokensSource.ValueType]:
        """Most output tokens of each choice, and where the number comes from. ``prompt``: its tokens.

        Raises InvalidRequest where the request asks for more than there is room for.
        """
        asked, source = self._each(fields, prompt_field, prompt)
        if self.quota is not None and self.quota // fields.n < asked:
            asked, source = self.quota // fields.n, pb.MAX_TOKENS_SOURCE_TENANT_CAP
        if asked == 0:
            raise InvalidRequest.field(
                "sampling.n", f"{fields.n} choices are above this tenant's {self.quota} tokens a request; lower it"
            )
        bad = Violations()
        if fields.min_tokens > asked:
            bad.add("stopping.min_tokens", f"{fields.min_tokens}, but only {asked} tokens are left; lower it")
        if fields.n > 1 and fields.n * asked > CHOICES_TOKENS_MAX:
            bad.add(
                "sampling.n",
                f"{fields.n} choices of {asked} tokens are {fields.n * asked}, above {CHOICES_TOKENS_MAX} together; "
                f"lower n, or stopping.max_tokens to {CHOICES_TOKENS_MAX // fields.n}",
            )
        _check_logprobs(fields, prompt, asked, bad)
        bad.raise_if_any()
        return asked, source

    def _each(self, fields: CheckedFields, prompt_field: str, prompt: int) -> tuple[int, pb.MaxTokensSource.ValueType]:
        room, asked, n = self.context - prompt, fields.max_tokens, fields.n
        if room < 1:
            raise InvalidRequest.field(
                prompt_field, f"{prompt} tokens leave no room in the model's context of {self.context}; shorten it"
            )
        cap = None if self.cap is None else self.cap // n
        if cap == 0:
            raise InvalidRequest.field(
                "sampling.n", f"{n} choices are above this deployment's cap of {self.cap} tokens a request; lower it"
            )
        if asked is None:
            if cap is not None and cap < room:
                return cap, pb.MAX_TOKENS_SOURCE_TENANT_CAP
            return room, pb.MAX_TOKENS_SOURCE_CONTEXT
        if asked > room:
            raise InvalidRequest.field(
                "stopping.max_tokens",
                f"{asked} after a prompt of {prompt} exceeds the model's context of {self.context}; "
                f"ask for at most {room}",
            )
        if cap is not None and asked > cap:
            each = f" for each of {n} choices" if n > 1 else ""
            raise InvalidRequest.field(
                "stopping.max_tokens", f"{asked} is above this deployment's cap; ask for at most {cap}{each}"
            )
        return asked, pb.MAX_TOKENS_SOURCE_REQUEST


def _check_logprobs(fields: CheckedFields, prompt: int, max_tokens: int, bad: Violations) -> None:
    top, of_prompt = fields.output.top_logprobs, fields.output.prompt_logprobs
    wanted = 0 if of_prompt is None else (prompt - 1) * (1 + of_prompt)
    if wanted > LOGPROBS_MAX:
        bad.add(
            "output.prompt_logprobs",
            f"{prompt} prompt tokens with {of_prompt} likeliest ids make {wanted} logprobs, above {LOGPROBS_MAX}; "
            "lower it, or shorten the prompt",
        )
    elif top is not None and (total := wanted + fields.n * max_tokens * (1 + top)) > LOGPROBS_MAX:
        bad.add(
            "output.top_logprobs",
            f"{fields.n} x {max_tokens} tokens with {top} likeliest ids and the prompt's {wanted} make {total} "
            f"logprobs, above {LOGPROBS_MAX}; lower it, or stopping.max_tokens",
        )


__all__ = ["CHOICES_TOKENS_MAX", "LOGPROBS_MAX", "Room"]
