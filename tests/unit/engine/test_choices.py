"""n choices of one request in a whole engine: each what it would be by itself, together one answer, all or nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lorry.config import SchedulerConfig
from lorry.engine.contract import ChoiceEnd, Finished, Started, Tokens
from lorry.engine.events import (
    EngineOccurrence,
    RequestAdmitted,
    RequestEnded,
    RequestRefused,
    RequestStarted,
    StepRan,
)
from lorry.errors import AlreadyExists, DeadlineExceeded, InvalidRequest, NonFiniteLogits
from lorry.request import OutputParams, SamplingParams, StoppingParams
from lorry.text import Detokenizer, Tokenizer
from tests.support.adapters import save_adapter
from tests.support.engines import GREEDY, TINY_MEMORY, Running, engine_config, running
from tests.support.tiny_base import write_tiny_base
from tests.support.tracers import write_tracer, write_tracer_base
from tests.unit.engine.heard import WAIT_S, hear, request
from tests.unit.engine.plans import oracle_ids

HOT = SamplingParams(temperature=1.1, top_p=0.97, seed=91)
HEAVY = replace(
    HOT, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.5, logit_bias=((9, 2.0), (31, -4.0))
)
PROMPT = [11, 12, 250, 7, 7, 40, 3, 90, 18, 21, 33, 35, 60, 61, 62, 63, 64, 65, 66, 67, 68]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("choices")


@pytest.fixture(scope="module")
def models(folder: Path) -> dict[str, Any]:
    base = write_tiny_base(folder / "base")
    return {"base": base, "one": save_adapter(base, folder / "one", seed=1)}


def watch(r: Running) -> list[EngineOccurrence]:
    """What the core tells its listeners from now on."""
    told: list[EngineOccurrence] = []
    r.parts.core._listeners = (*r.parts.core._listeners, told.append)
    return told


async def settled(r: Running) -> None:
    """Nothing is live and no page in use. Two states, as at most one step follows an abort."""
    await r.engine.state()
    state = await r.engine.state()
    assert state["live"] == 0
    r.parts.scheduler.check_integrity()


@pytest.mark.parametrize("sampling", [HOT, HEAVY], ids=["plain", "penalties"])
@pytest.mark.parametrize("chunk", [64, 6], ids=["whole", "chunked"])
async def test_each_choice_is_drawn_by_its_own_number(
    folder: Path, models: dict[str, Any], sampling: SamplingParams, chunk: int
) -> None:
    scheduler = SchedulerConfig(max_sequences=8, token_budget=64, prefill_chunk_tokens=chunk, context_tokens=256)
    async with running(engine_config(folder / "base", scheduler=scheduler)) as r:
        ref = r.host.add(folder / "one")
        for name, adapter in (("base", None), ("one", ref)):
            heard = await hear(r.engine, PROMPT, 16, adapter=adapter, sampling=sampling, n=4)
            want = [oracle_ids(models[name], PROMPT, 16, sampling, choice) for choice in range(4)]
            assert [list(ids) for ids in heard.ids] == want
            assert len({tuple(ids) for ids in want}) == 4
            single = await hear(r.engine, PROMPT, 16, adapter=adapter, sampling=sampling)
            assert single.ids[0] == heard.ids[0]
            assert heard.finished.provenance.adapter == (adapter.digest if adapter else None)


async def test_choices_of_several_requests_in_one_batch_are_what_each_is_alone(folder: Path, models: Any) -> None:
    async with running(engine_config(folder / "base")) as r:
        ref = r.host.add(folder / "one")
        cases: list[dict[str, Any]] = [
            {"n": 3, "sampling": HEAVY, "adapter": ref},
            {"n": 2, "sampling": HOT, "output": OutputParams(top_logprobs=2, prompt_logprobs=1)},
            {"sampling": GREEDY},
            {"n": 4, "sampling": replace(HEAVY, seed=2), "adapter": ref},
        ]
        alone = [await hear(r.engine, PROMPT[i:], 12, **case) for i, case in enumerate(cases)]
        together = await asyncio.gather(*(hear(r.engine, PROMPT[i:], 12, **case) for i, case in enumerate(cases)))
        assert [heard.ids for heard in together] == [heard.ids for heard in alone]
        assert [heard.ends for heard in together] == [heard.ends for heard in alone]
        await settled(r)


async def test_one_answer_with_the_counts_of_all(folder: Path, models: Any) -> None:
    tokenizer = Tokenizer.load(folder / "base")
    async with running(engine_config(folder / "base")) as r:
        told = watch(r)
        heard = await hear(r.engine, PROMPT, 10, sampling=HOT, n=3)
        state = await r.engine.state()
    assert heard.ends == (ChoiceEnd("length", "", None, 10),) * 3
    assert heard.finished.output_tokens == 30
    assert heard.finished.prompt_tokens == len(PROMPT)
    for ids, text in zip(heard.ids, heard.texts, strict=True):
        detokenizer = Detokenizer(tokenizer, PROMPT)
        assert text == detokenizer.push(ids) + detokenizer.flush()
    counted = Counter(type(event) for event in told)
    assert [counted[kind] for kind in (RequestAdmitted, RequestStarted, RequestEnded, RequestRefused)] == [1, 1, 1, 0]
    assert [event.output_tokens for event in told if isinstance(event, RequestEnded)] == [30]
    assert state["outcomes"] == {"length": 1}


async def test_greedy_choices_are_alike_and_one_token_is_enough(folder: Path, models: Any) -> None:
    async with running(engine_config(folder / "base")) as r:
        heard = await hear(r.engine, PROMPT, 1, n=4)
        assert len(set(heard.ids)) == 1
        assert heard.finished.output_tokens == 4


async def test_each_choice_stops_by_itself(folder: Path, models: Any) -> None:
    """A stop id of one choice and a stop string of another; the third runs to its length."""
    async with running(engine_config(folder / "base")) as r:
        free = await hear(r.engine, PROMPT, 24, sampling=HOT, n=3)
        ids = [set(found) for found in free.ids]
        token = next(t for t in free.ids[1] if t not in ids[0] | ids[2] and t != free.ids[1][0])
        pieces = [text[i : i + 3] for text in free.texts[2:] for i in range(4, len(text) - 3)]
        string = next(p for p in pieces if p not in free.texts[0] and p not in free.texts[1] and "\ufffd" not in p)
        stopping = StoppingParams(max_tokens=24, stop=(string,), stop_token_ids=(token,), ignore_eos=True)
        output = OutputParams(top_logprobs=1)
        heard = await hear(r.engine, PROMPT, stopping=stopping, sampling=HOT, n=3, output=output)
        await settled(r)
    assert heard.ends[0] == ChoiceEnd("length", "", None, 24)
    assert heard.ids[0] == free.ids[0]
    at = free.ids[1].index(token)
    assert heard.ends[1] == ChoiceEnd("stop", "", token, at + 1)
    assert heard.ids[1] == free.ids[1][:at], "a stop id is not printed"
    assert heard.texts[2] == free.texts[2][: free.texts[2].index(string)]
    assert (heard.ends[2].reason, heard.ends[2].matched_stop, heard.ends[2].matched_stop_id) == ("stop", string, None)
    assert heard.ids[2] == free.ids[2][: heard.ends[2].output_tokens]
    for found, logprobs in zip(heard.ids, heard.logprobs, strict=True):
        assert tuple(one.token_id for one in logprobs) == found
    assert heard.finished.output_tokens == sum(end.output_tokens for end in heard.ends)


async def test_closing_the_reader_aborts_every_choice(folder: Path, models: Any) -> None:
    async with running(engine_config(folder / "base")) as r:
        told = watch(r)
        stopping = StoppingParams(max_tokens=200, ignore_eos=True)
        events: Any = r.engine.generate(await request(r.engine, PROMPT, stopping=stopping, sampling=HOT, n=4))
        heard: set[int] = set()
        async with asyncio.timeout(WAIT_S):
            async for event in events:
                heard |= {event.choice} if isinstance(event, Tokens) else set()
                if len(heard) == 4:
                    break
        await events.aclose()
        await settled(r)
        assert [event.outcome for event in told if isinstance(event, RequestEnded)] == ["CANCELLED"]


async def test_all_choices_are_added_or_none(folder: Path, models: Any) -> None:
    """The id of the third is taken, which LocalEngine's ids never are: the first two are taken back, the request is
    refused once, and whose id it is hears nothing of it."""
    async with running(engine_config(folder / "base")) as r:
        taken = await request(r.engine, PROMPT, 200, request_id="mine#0/2")
        r.parts.core.submit(taken)
        told = watch(r)
        with pytest.raises(AlreadyExists):
            await hear(r.engine, PROMPT, 4, sampling=HOT, n=4, request_id="mine")
        assert [type(event) for event in told if getattr(event, "request", "") == "mine#0"] == [RequestRefused]
        await r.engine.state()
        assert (await r.engine.state())["live"] == 1
        r.parts.core.abort(taken.request_id)
        await settled(r)
        assert (await hear(r.engine, PROMPT, 4, sampling=HOT, n=4, request_id="mine")).finished.output_tokens == 16
        await settled(r)


async def test_one_choices_error_is_the_requests(tmp_path: Path) -> None:
    write_tracer_base(tmp_path / "base")
    write_tracer(tmp_path / "t0", 0, loud=1e25)
    async with running(engine_config(tmp_path / "base")) as r:
        told = watch(r)
        ref = r.host.add(tmp_path / "t0")
        good = asyncio.create_task(hear(r.engine, [4, 5], 20, n=2))
        with pytest.raises(NonFiniteLogits):
            await hear(r.engine, [1, 2, 3], adapter=ref, n=3, output=OutputParams(1, 1))
        assert (await good).finished.output_tokens == 40
        await settled(r)
        assert Counter(e.outcome for e in told if isinstance(e, RequestEnded)) == {"NON_FINITE_LOGITS": 1, "length": 1}


async def test_a_deadline_ends_all_choices_once(folder: Path, models: Any) -> None:
    async with running(engine_config(folder / "base")) as r:
        told = watch(r)
        stopping = StoppingParams(max_tokens=230, ignore_eos=True)
        with pytest.raises(DeadlineExceeded):
            await hear(r.engine, PROMPT, stopping=stopping, sampling=HOT, n=4, deadline_s=0.02)
        await settled(r)
        ended = [event.outcome for event in told if isinstance(event, RequestEnded)]
        refused = [event.reason for event in told if isinstance(event, RequestRefused)]
        assert ended + refused == ["DEADLINE_EXCEEDED"]


async def test_out_of_range_is_refused_by_name(folder: Path, models: Any) -> None:
    async with running(engine_config(folder / "base")) as r:
        for field, changes in (
            ("sampling.n", {"n": 0}),
            ("sampling.n", {"n": 17}),
            ("sampling.logit_bias", {"sampling": replace(GREEDY, logit_bias=((320, 1.0),))}),
            ("sampling.logit_bias", {"sampling": replace(GREEDY, logit_bias=((-1, 1.0),))}),
            ("sampling.repetition_penalty", {"sampling": replace(GREEDY, repetition_penalty=0.0)}),
            ("output.top_logprobs", {"output": OutputParams(top_logprobs=21)}),
        ):
            with pytest.raises(InvalidRequest) as caught:
                await hear(r.engine, PROMPT, **changes)
            assert [violation.field for violation in caught.value.violations] == [field]
        assert len((await hear(r.engine, PROMPT)).ids[0]) == 8


async def test_prompt_logprobs_come_once_with_the_start(folder: Path, models: Any) -> None:
    async with running(engine_config(folder / "base")) as r:
        wanted = await request(r.engine, PROMPT, sampling=HOT, n=3, output=OutputParams(prompt_logprobs=2))
        events = [event async for event in r.engine.generate(wanted)]
    started = events[0]
    assert isinstance(started, Started)
    assert [one.token_id for one in started.prompt_logprobs] == PROMPT[1:]
    assert isinstance(events[-1], Finished)
    assert not any(event.logprobs for event in events if isinstance(event, Tokens))


async def test_the_prompts_full_pages_are_computed_once(folder: Path, models: Any) -> None:
    prompt = (PROMPT * 2)[:40]
    own = len(prompt) % TINY_MEMORY.page_tokens
    async with running(engine_config(folder / "base")) as r:
        told = watch(r)
        heard = await hear(r.engine, prompt, 6, sampling=HOT, n=4)
        computed = sum(event.prefill_tokens for event in told if isinstance(event, StepRan))
        alone = await hear(r.engine, prompt, 6, sampling=HOT)
        await settled(r)
    assert computed == len(prompt) + 3 * own
    assert heard.finished.cached_prompt_tokens == alone.finished.cached_prompt_tokens == 0, "none of an earlier request"
    assert [list(ids) for ids in heard.ids] == [oracle_ids(models["base"], prompt, 6, HOT, i) for i in range(4)]


async def test_preempted_choices_say_what_they_would_have_said(folder: Path, models: Any) -> None:
    """Every step takes the device from one sequence that has advanced: counts of penalties, draws, logprobs of prompt
    and output, and stops are the same."""
    scheduler = SchedulerConfig(max_sequences=8, token_budget=64, prefill_chunk_tokens=6, context_tokens=256)
    async with running(engine_config(folder / "base", scheduler=scheduler)) as r:
        ref = r.host.add(folder / "one")
        cases: list[dict[str, Any]] = [
            {"n": 3, "sampling": HEAVY, "adapter": ref, "output": OutputParams(2, 1)},
            {"n": 2, "sampling": HOT, "cache_salt": b"salt"},
        ]
        free = [await hear(r.engine, PROMPT, 14, **case) for case in cases]
        preempted = 0

        def preempt(event: EngineOccurrence) -> None:
            nonlocal preempted
            if isinstance(event, StepRan):
                preempted += any(r.parts.scheduler.preempt(one) for one in r.parts.scheduler.advanced()[:1])

        r.parts.core._listeners = (*r.parts.core._listeners, preempt)
        again = await asyncio.gather(*(hear(r.engine, PROMPT, 14, **case) for case in cases))
        await settled(r)
    assert preempted > 10
    for before, after in zip(free, again, strict=True):
        assert (after.ids, after.texts, after.ends) == (before.ids, before.texts, before.ends)
        pairs = [(before.started.prompt_logprobs, after.started.prompt_logprobs)]
        for want, found in (*pairs, *zip(before.logprobs, after.logprobs, strict=True)):
            assert [one.token_id for one in found] == [one.token_id for one in want]
            assert [one.logprob for one in found] == pytest.approx([one.logprob for one in want], abs=1e-4)
