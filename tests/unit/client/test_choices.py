"""Several choices, logprobs and the newer parameters, through both clients and the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from lorry.cli.app import main
from lorry.client import Choice, Client, TokenLogprobs
from lorry.client.requests import GenerateParams, build_request
from lorry.errors import InvalidRequest
from lorry.request import OutputParams
from tests.integration.gateway.world import PIRATE, World, world
from tests.unit.engine_contract.fakes import tokenizer

PARAMS: GenerateParams = {
    "temperature": 1.0,
    "seed": 7,
    "n": 3,
    "max_tokens": 6,
    "want_token_ids": True,
    "top_logprobs": 2,
    "prompt_logprobs": 1,
    "flush": True,
}


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with world() as made:
        yield made


async def blocking(call: Callable[[], Any]) -> Any:
    """The blocking client must not share the gateway's loop."""
    async with asyncio.timeout(30):
        return await asyncio.to_thread(call)


async def test_all_four_ways_give_the_same_choices(here: World) -> None:
    def sync() -> tuple[Any, Any, list[Any]]:
        with Client(here.gateway.address, here.keys["acme"]) as client:
            stream = client.stream(PIRATE, "the lorry", **PARAMS)
            return client.generate(PIRATE, "the lorry", **PARAMS), stream, list(stream)

    result, stream, deltas = await blocking(sync)
    aresult = await here.client().generate(PIRATE, "the lorry", **PARAMS)
    astream = here.client().stream(PIRATE, "the lorry", **PARAMS)
    adeltas = [delta async for delta in astream]
    assert result.choices == stream.choices == aresult.choices == astream.choices
    assert len({choice.token_ids for choice in result.choices}) == 3
    for choice in result.choices:
        assert isinstance(choice, Choice)
        assert (choice.finish_reason, choice.output_tokens, len(choice.token_ids)) == ("length", 6, 6)
        assert [one.token_id for one in choice.logprobs] == list(choice.token_ids)
        assert {len(one.top) for one in choice.logprobs} == {2}
    prompt = tokenizer().encode("the lorry", True)
    answers: list[Any] = [result, aresult, stream, astream]
    for answer in answers:
        assert isinstance(answer.prompt_logprobs[0], TokenLogprobs)
        assert [one.token_id for one in answer.prompt_logprobs] == prompt[1:]
        first = answer.choices[0]
        assert (answer.text, answer.token_ids, answer.logprobs) == (first.text, first.token_ids, first.logprobs)
        assert (answer.finish_reason, answer.matched_stop, answer.matched_stop_id) == ("length", "", None)
        assert answer.usage.output_tokens == 18
    for pieces in (deltas, adeltas):
        for choice in result.choices:
            mine = [delta for delta in pieces if delta.choice == choice.index]
            assert "".join(map(str, mine)) == choice.text
            assert tuple(one for delta in mine for one in delta.logprobs) == choice.logprobs


async def test_a_stream_knows_its_choices_while_they_come(here: World) -> None:
    async with here.client().stream(PIRATE, "the lorry", **PARAMS) as stream:
        async for delta in stream:
            assert stream.choices[delta.choice].text.endswith(delta.text)
            assert len(stream.choices) == 3
            assert {choice.finish_reason for choice in stream.choices} == {""}
            break


async def test_every_new_parameter_reaches_the_engine(here: World) -> None:
    await here.client().generate(
        PIRATE,
        "the lorry",
        n=2,
        max_tokens=1,
        repetition_penalty=1.25,
        frequency_penalty=-1.5,
        presence_penalty=0.5,
        logit_bias={9: -100, 3: 4.5},
        top_logprobs=0,
        prompt_logprobs=3,
        ttft_timeout_s=2.5,
        cache_scope="team",
    )
    seen = here.engine.seen[0]
    assert (seen.n, seen.output) == (2, OutputParams(top_logprobs=0, prompt_logprobs=3))
    sampling = seen.sampling
    assert (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty) == (1.25, -1.5, 0.5)
    assert sampling.logit_bias == ((3, 4.5), (9, -100.0))
    assert (seen.ttft_timeout_s, seen.cache_scope) == (2.5, "team")


def test_what_is_left_out_is_left_out_of_the_request() -> None:
    made = build_request("m", "p", None, None, {})
    for message in (made.sampling, made.stopping, made.output):
        assert message.ListFields() == []
    assert not made.HasField("ttft_timeout")
    assert made.cache_scope == ""


@pytest.mark.parametrize(
    "params",
    [
        {"n": -1},
        {"n": 1.5},
        {"top_logprobs": -1},
        {"prompt_logprobs": "many"},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {1: "x"}},
        {"logit_bias": [1]},
        {"ttft_timeout_s": float("inf")},
        {"ttft_timeout_s": float("nan")},
        {"queue_timeout_s": float("inf")},
        {"cache_scope": 5},
    ],
    ids=str,
)
def test_what_fits_no_field_is_an_invalid_request(params: Any) -> None:
    with pytest.raises(InvalidRequest):
        build_request("m", "p", None, None, params)


async def cli(here: World, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setenv("LORRY_API_KEY", here.keys["acme"])
    line = ["generate", "--model", PIRATE, "--address", here.gateway.address, "--raw", "--seed", "7", *options]
    status: int = await blocking(lambda: main([*line, "--temperature", "1", "--max-tokens", "6", "the lorry"]))
    return status


async def test_the_command_line_shows_choices_apart(
    here: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = await here.client().generate(PIRATE, "the lorry", **PARAMS)
    assert await cli(here, monkeypatch, "--n", "3", "--top-logprobs", "1") == 0
    shown = capsys.readouterr()
    assert shown.out == "".join(f"--- choice {c.index}\n{c.text}\n" for c in truth.choices)
    for choice in truth.choices:
        for one in choice.logprobs:
            line = f"[choice {choice.index}: token {one.token_id} {one.logprob:.4f} | {one.token_id}:"
            assert line in shown.err
    assert "18 tokens, length, length, length]" in shown.err


async def test_the_command_line_alone_prints_the_text_as_ever(
    here: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = await here.client().generate(PIRATE, "the lorry", seed=7, max_tokens=6)
    assert await cli(here, monkeypatch) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{truth.text}\n"
    assert "6 tokens, length]" in shown.err


async def test_the_command_line_sends_what_it_is_told_and_answers_in_json(
    here: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--n=2", "--logit-bias=9=-100", "--logit-bias=3=4.5", "--top-logprobs=2", "--cache-scope=team", "--json"]
    penalties = ["--repetition-penalty=1.25", "--frequency-penalty", "-1.5", "--presence-penalty=0.5"]
    assert await cli(here, monkeypatch, *options, *penalties) == 0
    answer = json.loads(capsys.readouterr().out)
    seen = here.engine.seen[0]
    assert seen.sampling.logit_bias == ((3, 4.5), (9, -100.0))
    assert (seen.sampling.repetition_penalty, seen.sampling.frequency_penalty) == (1.25, -1.5)
    assert (seen.sampling.presence_penalty, seen.cache_scope, seen.n) == (0.5, "team", 2)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["model"]["adapter"] == PIRATE
    assert (answer["usage"]["outputTokens"], answer["usage"]["cachedPromptTokens"]) == (12, 0)
    assert answer["requestId"]
    for choice in answer["choices"]:
        assert len(choice["logprobs"]) == 6
        assert {len(one["top"]) for one in choice["logprobs"]} == {2}


@pytest.mark.parametrize("pair", ["9", "x=1", "9=y", "=", "9=1=2"])
async def test_a_bias_that_is_none_is_refused_by_its_text(
    here: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pair: str
) -> None:
    assert await cli(here, monkeypatch, "--logit-bias", pair) == 1
    assert repr(pair) in capsys.readouterr().err
    assert here.engine.seen == []
