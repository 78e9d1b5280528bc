"""``lorry generate``: one streamed answer, and on request everything that is known of it."""

from __future__ import annotations

import argparse
import json
import os
import sys

from lorry.client import Client
from lorry.client.requests import GenerateParams
from lorry.errors import Unauthenticated


def generate(options: argparse.Namespace) -> int:
    """Text goes to standard output as it comes; which weights answered goes to standard error at the end."""
    key = os.environ.get("LORRY_API_KEY", "")
    if not key:
        raise Unauthenticated("LORRY_API_KEY is not set; export the tenant's API key")
    params: GenerateParams = {"max_tokens": options.max_tokens, "temperature": options.temperature}
    if options.seed is not None:
        params["seed"] = options.seed
    if options.expected_sha256:
        params["expected_sha256"] = options.expected_sha256
    prompt = options.prompt if options.raw else None
    messages = None if options.raw else [{"role": "user", "content": options.prompt}]
    with (
        Client(options.address, key) as client,
        client.stream(options.model, prompt, messages=messages, **params) as stream,
    ):
        for delta in stream:
            if not options.json:
                print(delta.text, end="", flush=True)
        model, usage = stream.resolved, stream.usage
        assert model is not None
        assert usage is not None
        if options.json:
            answer = {
                "text": stream.text,
                "finish_reason": stream.finish_reason,
                "adapter": model.adapter,
                "version": model.version,
                "sha256": model.sha256,
                "base": model.base,
                "base_sha256": model.base_sha256,
                "prompt_tokens": usage.prompt_tokens,
                "output_tokens": usage.output_tokens,
            }
            print(json.dumps(answer, indent=2))
        else:
            print()
            who = f"{model.adapter} version {model.version} sha256 {model.sha256}" if model.adapter else model.base
            print(f"[{who}; {usage.output_tokens} tokens, {stream.finish_reason}]", file=sys.stderr)
    return 0


__all__ = ["generate"]
