"""An engine whose device works on after ``submit``: tokens amid an answer are made while the next step runs, and what
readers are told is the same.

The CPU's runner, which is done when it returns, stands in for such a device: the order of things is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lorry.engine.contract import EngineRequest, Tokens
from lorry.engine.gpu import runner
from lorry.ids import RequestId
from lorry.request import OutputParams, SamplingParams, StoppingParams
from lorry.scheduler import SequenceUpdate
from lorry.scheduler.plan import StepPlan
from tests.support.adapters import save_adapter
from tests.support.engines import Running, engine_config, running
from tests.support.tiny_base import write_tiny_base
from tests.unit.engine.heard import Heard, hear, request

PROMPTS = [[5 * n + at for at in range(1 + n)] for n in range(8)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("overlap")
    base = write_tiny_base(made / "base")
    for seed, name in enumerate(("one", "other")):
        save_adapter(base, made / name, seed=seed, r=8)
    return made


@asynccontextmanager
async def opened(folder: Path, overlaps: bool = True) -> AsyncIterator[Running]:
    async with running(engine_config(folder / "base"), [folder / "one", folder / "other"]) as r:
        await r.engine.info()  # warm
        r.parts.runner.overlaps = overlaps
        yield r


async def test_tokens_amid_an_answer_are_made_between_submit_and_collect_and_others_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(folder) as r:
        happened: list[str] = []
        of_parts, calls = r.parts.runner, r.parts.core._calls
        submit, collect, update, sink = of_parts.submit, of_parts.collect, calls.update, r.parts.core._sink

        def submitted(plan: StepPlan) -> Any:
            happened.append("submit")
            return submit(plan)

        def collected(handle: Any) -> Any:
            happened.append("collect")
            return collect(handle)

        def updated(news: SequenceUpdate, step: int) -> Any:
            happened.append("first" if news.first else "last" if news.finish else "amid")
            return update(news, step)

        def told(outcomes: Any) -> None:
            happened.append("told")
            sink(outcomes)

        monkeypatch.setattr(of_parts, "submit", submitted)
        monkeypatch.setattr(of_parts, "collect", collected)
        monkeypatch.setattr(calls, "update", updated)
        monkeypatch.setattr(r.parts.core, "_sink", told)
        heard = await hear(r.engine, [1, 2, 3], 4)
        assert len(heard.ids[0]) == 4
        begins = ["submit", "collect", "first", "told"]
        amid = ["submit", "collect", "submit", "amid", "told", "collect"]
        assert happened == [*begins, *amid, "submit", "amid", "told", "collect", "last", "told"]


@pytest.mark.parametrize(("kind", "overlaps"), [("cuda", True), ("cpu", False)])
def test_a_card_works_by_itself(kind: str, overlaps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "decode_workspace", lambda shape, rows: None)
    spec = SimpleNamespace(vocabulary=8, layers=1)
    device: Any = SimpleNamespace(
        shape=SimpleNamespace(device=torch.device(kind)),
        decoder=SimpleNamespace(spec=spec, workspaces=lambda rows, most: {}),
        tables=SimpleNamespace(nobody=1),
        adapters=None,
    )
    assert runner.PagedRunner(device, lambda adapter: None).overlaps is overlaps


async def whole(r: Running, folder: Path) -> list[Heard]:
    """Requests of every kind at once: with adapters and without, choices, logprobs, draws, stop strings and ids."""
    refs = [None, r.host.add(folder / "one"), r.host.add(folder / "other")]
    texts = ["".join((await hear(r.engine, prompt, 24)).texts) for prompt in PROMPTS[:3]]
    stops = [text[len(text) // 2 :][:2] for text in texts]
    assert all(stops)
    asked = [
        hear(
            r.engine,
            prompt,
            24,
            adapter=refs[n % 3] if n > 2 else None,
            n=1 + n % 2,
            sampling=SamplingParams(temperature=0.8 * (n % 4 > 1), seed=n),
            output=OutputParams(top_logprobs=n % 3 if n % 2 else None, prompt_logprobs=0 if n == 5 else None),
            stopping=StoppingParams(max_tokens=24, stop=(stops[n],) if n < 3 else (), ignore_eos=True),
        )
        for n, prompt in enumerate(PROMPTS)
    ]
    return await asyncio.gather(*asked)


async def test_every_answer_is_the_same(folder: Path) -> None:
    async with opened(folder, overlaps=False) as r:
        want = await whole(r, folder)
    async with opened(folder) as r:
        found = await whole(r, folder)
        state = await r.engine.state()
    assert any(one.ends[0].matched_stop for one in want), "a stop string ended one amid its answer"
    for one, other in zip(want, found, strict=True):
        assert (other.ids, other.texts, other.ends) == (one.ids, one.texts, one.ends)
        assert [[score.token_id for score in scores] for scores in other.logprobs] == [
            [score.token_id for score in scores] for scores in one.logprobs
        ]
        assert other.started.prompt_logprobs == one.started.prompt_logprobs
        assert other.finished.output_tokens == one.finished.output_tokens
        assert other.finished.provenance == one.finished.provenance
    assert state["live"] == 0
    assert state["scheduler"]["running"] == 0


async def test_one_that_leaves_is_told_no_more_and_everything_is_free(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(folder) as r:
        happened: list[str] = []
        abort, sink = r.parts.core._calls.abort, r.parts.core._sink

        def aborted(request_id: RequestId) -> None:
            happened.append(f"{request_id} left")
            abort(request_id)

        def told(outcomes: Any) -> None:
            happened.extend(request_id for request_id, _ in outcomes)
            sink(outcomes)

        monkeypatch.setattr(r.parts.core._calls, "abort", aborted)
        monkeypatch.setattr(r.parts.core, "_sink", told)
        wanted: EngineRequest = await request(r.engine, [1, 2, 3], 200)
        async for event in r.engine.generate(wanted):
            if isinstance(event, Tokens):
                break
        beside = await hear(r.engine, [4, 5], 8)
        assert len(beside.ids[0]) == 8
        async with asyncio.timeout(10):
            while (await r.engine.state())["live"]:
                await asyncio.sleep(0.01)
        (left,) = (at for at, one in enumerate(happened) if one.endswith(" left"))
        name = happened[left].removesuffix(" left")
        assert name in happened[:left]
        assert name not in happened[left:]


async def test_a_stop_string_ends_an_answer_whose_slot_goes_with_the_next_plan(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For want of a page the next plan preempts whoever came last, and another takes its slot: were the stop string
    found only then, nobody could say any more which bytes the answer is of."""
    async with opened(folder) as r:
        ref = r.host.add(folder / "one")
        text = (await hear(r.engine, PROMPTS[3], 24, adapter=ref)).texts[0]
        stop = text[len(text) // 2 :][:2]
        assert stop
        stopping = StoppingParams(max_tokens=24, stop=(stop,), ignore_eos=True)
        want = await hear(r.engine, PROMPTS[3], 24, adapter=ref, stopping=stopping)
        assert want.ends[0].matched_stop == stop
        scheduler = r.parts.scheduler
        pressed: list[int] = []
        decodes = scheduler._batch.decodes

        def short_of_pages(step: int) -> Any:
            for running in list(scheduler._batch):
                if running.adapter is not None and len(running.output) == want.ends[0].output_tokens and not pressed:
                    pressed.append(step)
                    scheduler._batch.preempt(running)
                    for slot in scheduler._residency.idle(force=True):
                        scheduler._residency.evict(slot)
                        scheduler._note_unload(slot.slot)
            return decodes(step)

        monkeypatch.setattr(scheduler._batch, "decodes", short_of_pages)
        beside = asyncio.ensure_future(hear(r.engine, [7, 7], 60))
        found = await hear(r.engine, PROMPTS[3], 24, adapter=ref, stopping=stopping)
        assert found.ends == want.ends
        assert found.finished.provenance == want.finished.provenance
        assert not pressed, "it had ended before the next plan was made"
        assert len((await beside).ids[0]) == 60
