"""``lorry generate``: one streamed answer, and on request everything that is known of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lorry.api.v1 import generate_pb2 as pb
from lorry.cli.output import as_json, print_json, printable, written
from lorry.cli.session import session
from lorry.client import Choice, GenerateParams, Stream, TokenLogprobs
from lorry.errors import InvalidRequest, LorryError

_FLAGS = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "n",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "top_logprobs",
    "expected_sha256",
    "request_id",
    "cold_load",
    "cache_scope",
    "sticky_key",
)
"""Each is the parameter of the same name where it was given."""


def generate(options: argparse.Namespace) -> int:
    """Text goes to standard output as it comes, further choices below it, each under its number; what else is known
    goes to standard error at the end."""
    here = session(options)
    text = sys.stdin.read() if options.prompt == "-" else options.prompt
    prompt = text if options.raw else None
    messages = None if options.raw else [{"role": "user", "content": text}]
    if messages and options.system:
        messages.insert(0, {"role": "system", "content": options.system})
    model = here.name(options.model)
    with (
        here.client() as client,
        client.stream(model, prompt, messages=messages, timeout_s=options.timeout, **params(options)) as stream,
    ):
        live = not options.json
        if live and stream.n > 1:
            print("--- choice 0", flush=True)
        try:
            for delta in stream:
                if live and delta.choice == 0:
                    print(written(delta.text), end="", flush=True)
        except LorryError:
            if live and stream.text:
                print()  # the error gets a line of its own
            raise
        if options.json:
            print_json(answer(stream))
        else:
            _show(stream)
    return 0


def params(options: argparse.Namespace) -> GenerateParams:
    """What the flags say; the rest is the server's default."""
    given = {name: getattr(options, name) for name in _FLAGS if getattr(options, name) not in (None, "")}
    found: GenerateParams = GenerateParams(**given)  # type: ignore[typeddict-item]  # names of its own, by _FLAGS
    if options.stop:
        found["stop"] = options.stop
    if options.logit_bias:
        found["logit_bias"] = _biases(options.logit_bias)
    if options.label:
        found["labels"] = dict(options.label)
    return found


def answer(stream: Stream) -> dict[str, object]:
    """A stream that has ended as the GenerateResponse that it would have been, in proto JSON."""
    model, usage = _known(stream)
    return as_json(
        pb.GenerateResponse(
            request_id=stream.request_id,
            model=model,
            choices=[_choice(choice) for choice in stream.choices],
            usage=usage,
            timings=stream.timings,
            effective=stream.effective,
            prompt_logprobs=[_logprobs(one) for one in stream.prompt_logprobs],
        )
    )


def who_answered(stream: Stream) -> str:
    """Which weights, in a line."""
    model, usage = _known(stream)
    name = f"{model.adapter} version {model.version} sha256 {model.sha256}" if model.adapter else model.base
    marks = [f"@{model.alias}"] if model.alias else []
    marks += [word for word, yes in (("canary", model.canary), ("pinned", model.pinned)) if yes]
    ends = ", ".join(choice.finish_reason for choice in stream.choices)
    cached = f", {usage.cached_prompt_tokens} of the prompt's cached" if usage.cached_prompt_tokens else ""
    return printable(f"[{' '.join([name, *marks])}; {usage.output_tokens} tokens, {ends}{cached}]")


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
        print(f"--- choice {choice.index}\n{written(choice.text)}")
    for choice in (first, *others):
        for one in choice.logprobs:
            top = " ".join(f"{token}:{logprob:.4f}" for token, logprob in one.top)
            print(f"[choice {choice.index}: token {one.token_id} {one.logprob:.4f} | {top}]", file=sys.stderr)
    print(who_answered(stream), file=sys.stderr)


def _choice(choice: Choice) -> pb.Choice:
    reason = {"stop": pb.FINISH_REASON_STOP, "length": pb.FINISH_REASON_LENGTH}
    return pb.Choice(
        index=choice.index,
        text=choice.text,
        token_ids=choice.token_ids,
        finish_reason=reason.get(choice.finish_reason, pb.FINISH_REASON_UNSPECIFIED),
        matched_stop=choice.matched_stop,
        matched_stop_id=choice.matched_stop_id,
        logprobs=[_logprobs(one) for one in choice.logprobs],
        output_tokens=choice.output_tokens,
    )


def _logprobs(one: TokenLogprobs) -> pb.TokenLogprobs:
    top = [pb.TopLogprob(token_id=token, logprob=logprob) for token, logprob in one.top]
    return pb.TokenLogprobs(token_id=one.token_id, logprob=one.logprob, top=top)


def _known(stream: Stream) -> tuple[pb.ResolvedModel, pb.Usage]:
    """A stream that has ended knows both."""
    assert stream.resolved is not None
    assert stream.usage is not None
    return stream.resolved, stream.usage


__all__ = ["answer", "generate", "params", "who_answered"]
