"""``lorry generate``: one streamed answer, and on request everything that is known of it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from lorry.api.v1 import generate_pb2 as pb
from lorry.client import Choice, Client, GenerateParams, Stream, TokenLogprobs
from lorry.errors import InvalidRequest, Unauthenticated


def generate(options: argparse.Namespace) -> int:
    """Text goes to standard output as it comes, further choices below it, each under its number; what else is known
    goes to standard error at the end."""
    key = os.environ.get("LORRY_API_KEY", "")
    if not key:
        raise Unauthenticated("LORRY_API_KEY is not set; export the tenant's API key")
    prompt = options.prompt if options.raw else None
    messages = None if options.raw else [{"role": "user", "content": options.prompt}]
    with (
        Client(options.address, key) as client,
        client.stream(options.model, prompt, messages=messages, **_params(options)) as stream,
    ):
        live = not options.json
        if live and options.n > 1:
            print("--- choice 0", flush=True)
        for delta in stream:
            if live and delta.choice == 0:
                print(delta.text, end="", flush=True)
        if options.json:
            print(json.dumps(_answer(stream), indent=2))
        else:
            _show(stream)
    return 0


def _params(options: argparse.Namespace) -> GenerateParams:
    params: GenerateParams = {"max_tokens": options.max_tokens, "temperature": options.temperature, "n": options.n}
    if options.seed is not None:
        params["seed"] = options.seed
    if options.expected_sha256:
        params["expected_sha256"] = options.expected_sha256
    if options.repetition_penalty is not None:
        params["repetition_penalty"] = options.repetition_penalty
    if options.frequency_penalty is not None:
        params["frequency_penalty"] = options.frequency_penalty
    if options.presence_penalty is not None:
        params["presence_penalty"] = options.presence_penalty
    if options.logit_bias:
        params["logit_bias"] = _biases(options.logit_bias)
    if options.top_logprobs is not None:
        params["top_logprobs"] = options.top_logprobs
    if options.cache_scope:
        params["cache_scope"] = options.cache_scope
    return params


def _biases(pairs: Sequence[str]) -> dict[int, float]:
    found: dict[int, float] = {}
    for pair in pairs:
        token, _, bias = pair.partition("=")
        try:
            found[int(token)] = float(bias)
        except ValueError:
            raise InvalidRequest.field("--logit-bias", f"{pair!r}; write a token id, = and a number") from None
    return found


def _show(stream: Stream) -> None:
    """The rest of what ``generate`` prints: choice 0's text is out already."""
    print()
    first, *others = stream.choices
    for choice in others:
        print(f"--- choice {choice.index}\n{choice.text}")
    model, usage = _known(stream)
    for choice in (first, *others):
        for one in choice.logprobs:
            top = " ".join(f"{token}:{logprob:.4f}" for token, logprob in one.top)
            print(f"[choice {choice.index}: token {one.token_id} {one.logprob:.4f} | {top}]", file=sys.stderr)
    who = f"{model.adapter} version {model.version} sha256 {model.sha256}" if model.adapter else model.base
    ends = ", ".join(choice.finish_reason for choice in (first, *others))
    cached = f", {usage.cached_prompt_tokens} of the prompt's cached" if usage.cached_prompt_tokens else ""
    print(f"[{who}; {usage.output_tokens} tokens, {ends}{cached}]", file=sys.stderr)


def _answer(stream: Stream) -> dict[str, object]:
    model, usage = _known(stream)
    return {
        "text": stream.text,
        "finish_reason": stream.finish_reason,
        "choices": [_choice(choice) for choice in stream.choices],
        "adapter": model.adapter,
        "version": model.version,
        "sha256": model.sha256,
        "base": model.base,
        "base_sha256": model.base_sha256,
        "prompt_tokens": usage.prompt_tokens,
        "cached_prompt_tokens": usage.cached_prompt_tokens,
        "output_tokens": usage.output_tokens,
    }


def _choice(choice: Choice) -> dict[str, object]:
    return {
        "index": choice.index,
        "text": choice.text,
        "finish_reason": choice.finish_reason,
        "matched_stop": choice.matched_stop,
        "matched_stop_id": choice.matched_stop_id,
        "output_tokens": choice.output_tokens,
        "logprobs": [_logprobs(one) for one in choice.logprobs],
    }


def _logprobs(one: TokenLogprobs) -> dict[str, object]:
    top = [{"token_id": token, "logprob": logprob} for token, logprob in one.top]
    return {"token_id": one.token_id, "logprob": one.logprob, "top": top}


def _known(stream: Stream) -> tuple[pb.ResolvedModel, pb.Usage]:
    """A stream that has ended knows both."""
    assert stream.resolved is not None
    assert stream.usage is not None
    return stream.resolved, stream.usage


__all__ = ["generate"]
