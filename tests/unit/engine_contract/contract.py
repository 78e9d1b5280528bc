"""The EngineClient contract as tests. Subclass EngineContract and give it the fixture ``bench``.

Whatever implements EngineClient, alone or behind a transport, passes all of it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from lorry.engine.contract import EngineInfo, Finished, Started, Tokens
from lorry.errors import (
    AdapterCold,
    AdapterObjectMissing,
    DeadlineExceeded,
    EngineUnavailable,
    FailedPrecondition,
    InvalidRequest,
    LorryError,
)
from lorry.ids import AdapterDigest, BaseDigest, RequestId
from lorry.request import CHOICES_MAX, TOP_LOGPROBS_MAX, OutputParams, StoppingParams
from lorry.text import Detokenizer
from tests.unit.engine_contract.bench import (
    GREEDY,
    HOT,
    WAIT_S,
    Bench,
    bench_request,
    check_logprobs,
    collect,
    ids_of,
    logprobs_of,
    text_of,
    until_idle,
)


class EngineContract:
    """Give ``bench`` as a (function-scoped) fixture yielding a Bench with at least two adapters and three prompts."""

    async def test_info_is_complete(self, bench: Bench) -> None:
        info = await bench.engine.info()
        assert isinstance(info, EngineInfo)
        assert len(info.base) == 64
        assert info.tokenizer_sha256 == bench.tokenizer.sha256
        assert info.context_tokens > 0
        assert info.vocabulary >= bench.tokenizer.vocabulary
        assert info.max_sequences > 0

    async def test_order_counts_and_provenance(self, bench: Bench) -> None:
        info = await bench.engine.info()
        for adapter in (None, *bench.adapters):
            wanted = await bench_request(bench, adapter)
            events = await collect(bench, wanted)
            started, *middle, finished = events
            assert isinstance(started, Started)
            assert middle
            assert all(isinstance(event, Tokens) for event in middle)
            assert isinstance(finished, Finished)
            for stated in (started.provenance, finished.provenance):
                assert stated.adapter == (adapter.digest if adapter else None)
                assert (stated.base, stated.tokenizer_sha256) == (info.base, info.tokenizer_sha256)
                assert (stated.dtype, stated.engine_build, stated.replica) == (
                    info.dtype,
                    info.engine_build,
                    info.replica,
                )
            assert (started.tier == "base") == (adapter is None)
            assert started.tier in ("base", "device", "host", "disk", "object_store")
            assert finished.reason == "length"
            assert finished.prompt_tokens == len(wanted.prompt)
            assert finished.output_tokens == len(ids_of(events)) == 8
            assert finished.max_distinct_adapters >= finished.min_distinct_adapters >= 1

    async def test_text_is_the_exact_detokenising_of_the_ids(self, bench: Bench) -> None:
        wanted = await bench_request(bench, bench.adapters[0], max_tokens=24)
        events = await collect(bench, wanted)
        detokenizer = Detokenizer(bench.tokenizer, wanted.prompt)
        assert text_of(events) == detokenizer.push(ids_of(events)) + detokenizer.flush()

    async def test_greedy_repeats_and_seeded_draws_repeat(self, bench: Bench) -> None:
        for sampling in (GREEDY, HOT):
            runs = [ids_of(await collect(bench, await bench_request(bench, sampling=sampling))) for _ in range(2)]
            assert runs[0] == runs[1]

    async def test_a_crowd_gets_what_each_gets_alone(self, bench: Bench) -> None:
        cases = [(adapter, prompt) for adapter in (None, *bench.adapters) for prompt in range(len(bench.prompts))]
        alone = [ids_of(await collect(bench, await bench_request(bench, *case))) for case in cases]
        wanted = [await bench_request(bench, *case) for case in cases]
        crowd = await asyncio.gather(*(collect(bench, one) for one in wanted))
        assert [ids_of(events) for events in crowd] == alone
        for (adapter, _), events in zip(cases, crowd, strict=True):
            assert isinstance(events[0], Started)
            assert events[0].provenance.adapter == (adapter.digest if adapter else None)

    async def test_stop_id_and_min_tokens(self, bench: Bench) -> None:
        ids = ids_of(await collect(bench, await bench_request(bench)))
        stop = ids[3]
        stopping = StoppingParams(max_tokens=8, stop_token_ids=(stop,), ignore_eos=True)
        events = await collect(bench, await bench_request(bench, stopping=stopping))
        first = ids.index(stop)
        assert isinstance(events[-1], Finished)
        assert (events[-1].reason, events[-1].matched_stop_id) == ("stop", stop)
        assert events[-1].output_tokens == first + 1
        assert ids_of(events) == ids[:first], "a stop id is not among the tokens"
        late = StoppingParams(max_tokens=8, stop_token_ids=(stop,), min_tokens=8, ignore_eos=True)
        assert ids_of(await collect(bench, await bench_request(bench, stopping=late))) == ids

    async def test_stop_string_ends_the_text_before_it(self, bench: Bench) -> None:
        text = text_of(await collect(bench, await bench_request(bench, max_tokens=16)))
        stop = text[len(text) // 2 :][:2]
        assert stop, "the engine under test must answer with some text"
        for include in (False, True):
            stopping = StoppingParams(
                max_tokens=16, stop=(stop, "never\x00there"), include_stop=include, ignore_eos=True
            )
            events = await collect(bench, await bench_request(bench, stopping=stopping))
            end = text.find(stop) + (len(stop) if include else 0)
            assert text_of(events) == text[:end]
            assert isinstance(events[-1], Finished)
            assert (events[-1].reason, events[-1].matched_stop) == ("stop", stop)

    async def test_choices_are_one_answer_with_an_end_for_each(self, bench: Bench) -> None:
        wanted = await bench_request(bench, bench.adapters[0], n=3, sampling=HOT, max_tokens=12)
        started, *middle, finished = await collect(bench, wanted)
        assert isinstance(started, Started)
        assert {event.choice for event in middle if isinstance(event, Tokens)} == {0, 1, 2}
        assert isinstance(finished, Finished)
        assert [(end.reason, end.output_tokens) for end in finished.choices] == [("length", 12)] * 3
        assert (finished.output_tokens, finished.prompt_tokens) == (36, len(wanted.prompt))
        for choice in range(3):
            detokenizer = Detokenizer(bench.tokenizer, wanted.prompt)
            assert text_of(middle, choice) == detokenizer.push(ids_of(middle, choice)) + detokenizer.flush()
        assert len({ids_of(middle, choice) for choice in range(3)}) == 3
        single = await collect(bench, replace(wanted, request_id=RequestId("contract-single"), n=1))
        assert ids_of(single) == ids_of(middle, 0), "choice 0 is what one choice alone is"

    async def test_each_choice_stops_by_itself(self, bench: Bench) -> None:
        free = await collect(bench, await bench_request(bench, n=2, sampling=HOT, max_tokens=16))
        stop = next(i for i in ids_of(free, 1) if i not in ids_of(free, 0))
        stopping = StoppingParams(max_tokens=16, stop_token_ids=(stop,), ignore_eos=True)
        events = await collect(bench, await bench_request(bench, n=2, sampling=HOT, stopping=stopping))
        at = ids_of(free, 1).index(stop)
        assert isinstance(events[-1], Finished)
        ends = [(end.reason, end.matched_stop_id, end.output_tokens) for end in events[-1].choices]
        assert ends == [("length", None, 16), ("stop", stop, at + 1)]
        assert (ids_of(events, 0), ids_of(events, 1)) == (ids_of(free, 0), ids_of(free, 1)[:at])

    async def test_logprobs_stand_beside_their_tokens(self, bench: Bench) -> None:
        quiet = await collect(bench, await bench_request(bench, n=2, sampling=HOT))
        stopping = StoppingParams(max_tokens=8, stop_token_ids=(ids_of(quiet)[-1],), ignore_eos=True)
        for top in (0, 4):
            output = OutputParams(top_logprobs=top)
            events = await collect(
                bench, await bench_request(bench, n=2, sampling=HOT, output=output, stopping=stopping)
            )
            for choice in range(2):
                check_logprobs(logprobs_of(events, choice), ids_of(events, choice), top)
        assert logprobs_of(quiet) == logprobs_of(quiet, 1) == ()

    async def test_prompt_logprobs_come_with_the_start(self, bench: Bench) -> None:
        for top in (0, 2):
            wanted = await bench_request(bench, bench.adapters[1], n=2, output=OutputParams(prompt_logprobs=top))
            started, *middle, _ = await collect(bench, wanted)
            assert isinstance(started, Started)
            check_logprobs(started.prompt_logprobs, wanted.prompt[1:], top)
            assert logprobs_of(middle) == ()
        started = (await collect(bench, await bench_request(bench)))[0]
        assert isinstance(started, Started)
        assert started.prompt_logprobs == ()

    async def test_bad_requests_are_refused_without_an_event_and_hurt_nobody(self, bench: Bench) -> None:
        info = await bench.engine.info()
        cases: list[tuple[type[LorryError], dict[str, Any]]] = [
            (InvalidRequest, {"prompt": ()}),
            (InvalidRequest, {"prompt": (info.vocabulary,)}),
            (InvalidRequest, {"stopping": StoppingParams(max_tokens=0)}),
            (InvalidRequest, {"stopping": StoppingParams(max_tokens=info.context_tokens)}),
            (InvalidRequest, {"n": CHOICES_MAX + 1}),
            (InvalidRequest, {"output": OutputParams(top_logprobs=TOP_LOGPROBS_MAX + 1)}),
            (InvalidRequest, {"sampling": replace(GREEDY, logit_bias=((info.vocabulary, 1.0),))}),
            (InvalidRequest, {"sampling": replace(GREEDY, repetition_penalty=-1.0)}),
            (DeadlineExceeded, {"deadline_s": 0.0}),
            (DeadlineExceeded, {"deadline_s": -1.0}),
            (LorryError, {"base": BaseDigest("0" * 64)}),
        ]
        good = asyncio.create_task(collect(bench, await bench_request(bench, max_tokens=16)))
        for error, changes in cases:
            prompt = changes.pop("prompt", None)
            wanted = await bench_request(bench, **changes)
            wanted = wanted if prompt is None else replace(wanted, prompt=prompt)
            with pytest.raises(error):
                await anext(aiter(bench.engine.generate(wanted)))
        assert isinstance((await good)[-1], Finished)

    async def test_an_unknown_adapter_yields_no_token(self, bench: Bench) -> None:
        """Never the base's, never another's: an error that is not the base's answer. Engines that make up adapters
        (the fake) state the unknown digest, which is its truth."""
        known = bench.adapters[0]
        stranger = replace(known, digest=AdapterDigest("f" * 64), prefix=known.prefix + "-absent")
        try:
            events = await collect(bench, await bench_request(bench, stranger))
        except LorryError:
            return
        assert isinstance(events[0], Started)
        assert events[0].provenance.adapter == stranger.digest

    @pytest.mark.parametrize("n", [1, 3])
    async def test_closing_the_iterator_aborts(self, bench: Bench, n: int) -> None:
        wanted = await bench_request(bench, bench.adapters[0], max_tokens=bench.long_tokens, n=n, sampling=HOT)
        events: Any = bench.engine.generate(wanted)
        heard: set[int] = set()
        async with asyncio.timeout(WAIT_S), aclosing(events):
            async for event in events:
                heard |= {event.choice} if isinstance(event, Tokens) else set()
                if len(heard) == n:
                    break
        await until_idle(bench)

    async def test_cancelling_the_reader_aborts(self, bench: Bench) -> None:
        wanted = await bench_request(bench, bench.adapters[0], max_tokens=bench.long_tokens)
        first = asyncio.Event()

        async def read() -> None:
            async for event in bench.engine.generate(wanted):
                if isinstance(event, Tokens):
                    first.set()

        task = asyncio.create_task(read())
        async with asyncio.timeout(WAIT_S):
            await first.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until_idle(bench)

    async def test_metrics_count_what_was_asked(self, bench: Bench) -> None:
        before = await bench.engine.metrics()
        info = await bench.engine.info()
        assert (before.build, before.dtype) == (info.engine_build, info.dtype)
        answer = await collect(bench, await bench_request(bench, bench.adapters[0], max_tokens=5))
        finished = answer[-1]
        assert isinstance(finished, Finished)
        after = await bench.engine.metrics()
        ended = {name: n - before.outcomes.get(name, 0) for name, n in after.outcomes.items()}
        assert ended == {**dict.fromkeys(ended, 0), finished.reason: 1}
        assert after.tokens["output"] - before.tokens.get("output", 0) == finished.output_tokens
        assert sum(after.hits.values()) - sum(before.hits.values()) == 1

    async def test_a_version_is_brought_in_and_taken_off_the_device(self, bench: Bench) -> None:
        first, second = bench.adapters[:2]
        await bench.engine.preload(second, WAIT_S)
        brought = await bench.engine.whereabouts(second.key)
        assert (brought.device, brought.host, brought.live) == (False, True, 0)
        answer = ids_of(await collect(bench, await bench_request(bench, first)))
        await until_idle(bench)
        assert (await bench.engine.whereabouts(first.key)).device
        assert await bench.engine.evict(first.key)
        assert not (await bench.engine.whereabouts(first.key)).device
        assert not await bench.engine.evict(first.key)
        assert ids_of(await collect(bench, await bench_request(bench, first))) == answer

    async def test_what_runs_is_not_taken_off_the_device(self, bench: Bench) -> None:
        adapter = bench.adapters[0]
        events: Any = bench.engine.generate(await bench_request(bench, adapter, max_tokens=bench.long_tokens))
        async with asyncio.timeout(WAIT_S), aclosing(events):
            await anext(events)
            assert (await bench.engine.whereabouts(adapter.key)).live == 1
            with pytest.raises(FailedPrecondition, match="1 requests run"):
                await bench.engine.evict(adapter.key)
            assert isinstance(await anext(events), Tokens)
        await until_idle(bench)

    async def test_nothing_tells_of_another_adapters_copy_of_the_same_bytes(self, bench: Bench) -> None:
        theirs, ours = bench.adapters[0], bench.twin
        assert theirs.digest == ours.digest
        events: Any = bench.engine.generate(await bench_request(bench, theirs, max_tokens=bench.long_tokens))
        async with asyncio.timeout(WAIT_S), aclosing(events):
            await anext(events)
            found = await bench.engine.whereabouts(ours.key)
            assert (found.device, found.host, found.disk and found.live) == (False, False, False)
            with pytest.raises(AdapterCold):
                await collect(bench, await bench_request(bench, ours, reject_cold=True))
            assert not await bench.engine.evict(ours.key), "nothing of it runs"
            answer = await collect(bench, await bench_request(bench, ours))
            assert isinstance(answer[0], Started)
            assert answer[0].tier not in ("device", "host", "base")
            assert answer[0].provenance.adapter == ours.digest
            assert (await bench.engine.whereabouts(ours.key)).device
            assert await bench.engine.evict(ours.key)
            assert (await bench.engine.forget(ours.key)).device_slots == 0
            assert (await bench.engine.whereabouts(theirs.key)).live == 1
            assert isinstance(await anext(events), Tokens)
        await until_idle(bench)
        assert (await bench.engine.whereabouts(theirs.key)).device
        assert not (await bench.engine.whereabouts(ours.key)).host

    async def test_a_version_is_forgotten_and_nothing_else(self, bench: Bench) -> None:
        doomed, kept = bench.adapters[:2]
        other: Any = bench.engine.generate(await bench_request(bench, kept, max_tokens=bench.long_tokens))
        events: Any = bench.engine.generate(await bench_request(bench, doomed, max_tokens=bench.long_tokens))
        async with asyncio.timeout(WAIT_S), aclosing(events), aclosing(other):
            await anext(events)
            await anext(other)
            found = await bench.engine.forget(doomed.key)
            assert found.device_slots == 1
            assert found.host_bytes > 0
            assert found.disk_bytes > 0
            with pytest.raises(AdapterObjectMissing, match="purged"):
                async for _ in events:
                    pass
            gone = await bench.engine.whereabouts(doomed.key)
            assert (gone.device, gone.host, gone.disk, gone.live) == (False, False, False, 0)
            assert isinstance(await anext(other), Tokens)
            again = await bench.engine.forget(doomed.key)
            assert (again.device_slots, again.host_bytes, again.disk_bytes, again.kv_pages) == (0, 0, 0, 0)
        await until_idle(bench)

    async def test_close_ends_open_iterators_and_is_idempotent(self, bench: Bench) -> None:
        wanted = await bench_request(bench, max_tokens=bench.long_tokens)
        later = await bench_request(bench)
        events: Any = bench.engine.generate(wanted)
        async with asyncio.timeout(WAIT_S), aclosing(events):
            assert isinstance(await anext(events), Started)
            await bench.engine.close()
            with pytest.raises(EngineUnavailable):
                async for _ in events:
                    pass
            await bench.engine.close()
            with pytest.raises(EngineUnavailable):
                await anext(aiter(bench.engine.generate(later)))
            with pytest.raises(EngineUnavailable):
                await bench.engine.info()


__all__ = ["EngineContract"]
