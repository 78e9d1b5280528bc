"""One byte budget: too small a one is refused at start with the numbers, and under the smallest that is taken everyone
gets the tokens that they get alone."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from lorry.api.v1 import generate_pb2 as pb
from lorry.errors import AdapterRefused
from tests.e2e.calls import Answer
from tests.e2e.random_base import (
    BASE,
    PAGE,
    VOCABULARY,
    Files,
    Lab,
    Penalties,
    ask_ids,
    ids_of,
    lab_settings,
    laboratory,
)
from tests.support.processes import descendants, still_alive

pytestmark = pytest.mark.asyncio(loop_scope="package")

BUDGET = 400 << 10
"""35 pages of 16 tokens: one longest sequence and three pages, as nothing but the base's KV and an adapter is in it."""
OUT = 90


async def serve(base: Path, home: Path, *flags: str) -> tuple[int, str]:
    """`lorry serve` until it ends by itself, or is warm and told to stop; its code, and all it said."""
    command = [str(Path(sys.executable).with_name("lorry")), "serve", "--base", str(base), "--home", str(home)]
    command += ["--port", "0", "--ops-port", "0", "--dtype", "float32", "--threads", "1", *flags]
    child = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=os.environ | {"COLUMNS": "200"}
    )
    assert child.stdout is not None
    said = ""
    async with asyncio.timeout(60):
        while line := (await child.stdout.readline()).decode():
            said += line
            if line.startswith("ready"):
                child.terminate()
        return await child.wait(), said


async def test_a_budget_too_small_is_refused_with_the_numbers(random_files: Files, tmp_path: Path) -> None:
    """What the refusal asks for is enough; and it says nothing of what an earlier start wrote into the log."""
    before = descendants()
    flags = ("--context-tokens", "256", "--page-tokens", "16")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "engine.log").write_text("an earlier start's words\n")
    code, said = await serve(random_files.base_dir, tmp_path, "--memory-budget", "100KiB", *flags)
    assert code not in (0, None)
    assert "Traceback" not in said, said
    assert str(100 << 10) in said
    assert "an earlier start's words" not in said
    assert "context_tokens = 256" in said
    page = 2 * 2 * 2 * 16 * 4 * PAGE  # layers, K and V, heads, width, bytes
    assert str(page) in said
    assert str(256 // PAGE) in said
    found = re.search(r"raise it to (\d+)", said)
    assert found is not None, said
    least = int(found[1])
    assert least > 256 // PAGE * page
    enough, said = await serve(random_files.base_dir, tmp_path, "--memory-budget", str(least), *flags)
    assert enough == 0, said
    assert "ready" in said
    assert still_alive(descendants() - before, within_s=10) == []


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def tight(random_files: Files, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    root = tmp_path_factory.mktemp("tight")
    async with laboratory(root, random_files, lab_settings(root, random_files, BUDGET, max_sequences=12)) as lab:
        yield lab


def requests_of(lab: Lab) -> list[pb.GenerateRequest]:
    """Of every kind: greedy, drawn, penalised, with stops, choices and logprobs, on base and adapter."""
    drawn = pb.SamplingParams(temperature=0.9, top_p=0.95, seed=8)
    several = pb.SamplingParams(temperature=1.0, n=3, seed=9)
    top, scored = pb.OutputParams(top_logprobs=2), pb.OutputParams(top_logprobs=0, prompt_logprobs=1)
    made = [
        ask_ids(BASE, ids_of("tight", 0), OUT),
        ask_ids(lab.shared, ids_of("tight", 1), OUT, output=top),
        ask_ids(BASE, ids_of("tight", 2), OUT, sampling=drawn, output=top),
        ask_ids(lab.shared, ids_of("tight", 3), OUT, sampling=Penalties(1.5, 0.4, 0.4).sampling()),
        ask_ids(BASE, ids_of("tight", 4), OUT, sampling=Penalties(1.1, 0.2, 0.9, {5: 2.0}).sampling(), output=scored),
        ask_ids(lab.shared, ids_of("tight", 5), OUT, sampling=several, output=top),
        ask_ids(BASE, ids_of("tight", 6), OUT, sampling=several),
        ask_ids(lab.shared, ids_of("tight", 5), OUT, sampling=drawn),
    ]
    made[2].stopping.min_tokens = 50
    made[2].stopping.stop_token_ids.extend(range(60))
    return made


def same(found: Answer, wanted: Answer) -> None:
    for one, other in zip(found.choices, wanted.choices, strict=True):
        assert one.ids == other.ids
        assert one.text == other.text
        assert (one.ending.finish_reason, one.ending.output_tokens) == (
            other.ending.finish_reason,
            other.ending.output_tokens,
        )
        assert [x.logprob for x in one.logprobs] == pytest.approx([x.logprob for x in other.logprobs], abs=1e-3)
        assert [x.token_id for x in one.logprobs] == [x.token_id for x in other.logprobs]
    assert [x.token_id for x in found.prompt_logprobs] == [x.token_id for x in wanted.prompt_logprobs]
    given, right = ([x.logprob for x in a.prompt_logprobs] for a in (found, wanted))
    assert given == pytest.approx(right, abs=1e-3)


async def test_preempted_requests_get_the_tokens_they_get_alone(tight: Lab) -> None:
    """Sixteen of two tenants where two fit, twice over; transformers says what the greedy ones are."""
    requests = requests_of(tight)
    alone = [await tight.run(request) for request in requests]
    assert alone[0].ids == tight.base.greedy(ids_of("tight", 0), OUT)
    assert alone[1].ids == tight.tuned.greedy(ids_of("tight", 1), OUT)
    before = (await tight.world.state())["scheduler"]["preemptions"]
    together = await asyncio.gather(
        *(tight.run(request, tenant) for tenant in (tight.acme, tight.guest) for request in requests)
    )
    after = (await tight.world.state())["scheduler"]["preemptions"]
    assert after - before >= 8, "the budget holds them all, and the test shows nothing"
    for found, wanted in zip(together, alone * 2, strict=True):
        same(found, wanted)
        bill = await tight.usage(found.usage.ledger_id)
        assert bill["output_tokens"] == wanted.usage.output_tokens, "computed again is not billed again"
        assert bill["prompt_tokens"] == wanted.usage.prompt_tokens
    await tight.world.idle()
    state = await tight.world.state()
    assert state["integrity"]["failures"] == 0


async def test_an_adapter_that_no_slot_could_hold_is_refused_at_registration(tight: Lab, tmp_path: Path) -> None:
    """Not at its first request: the engine says what it can hold, and the version before goes on."""
    from safetensors.numpy import load_file, save_file

    most = tight.world.platform.info.max_extra_bytes
    folder = await asyncio.to_thread(shutil.copytree, tight.folders[1], tmp_path / "whole")
    tensors = load_file(folder / "adapter_model.safetensors")
    rows, hidden = VOCABULARY, 64
    assert rows * hidden * 4 * 2 > most, "it fits, and the test shows nothing"
    for place in ("model.model.embed_tokens", "model.lm_head"):
        tensors[f"base_model.{place}.weight"] = np.full((rows, hidden), 0.25, np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = json.loads((folder / "adapter_config.json").read_text())
    config["modules_to_save"] = ["embed_tokens", "lm_head"]
    (folder / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(AdapterRefused) as refused:
        await tight.world.admin.push(tight.shared, folder, BASE)
    assert f"this engine holds {most}" in refused.value.message
    answer = await tight.run(ask_ids(tight.shared, ids_of("tight", 1), 8))
    assert answer.ids == tight.tuned.greedy(ids_of("tight", 1), 8)


async def test_sixteen_choices_where_two_fit(tight: Lab, lab: Lab) -> None:
    """The same as from a platform that has room for all."""
    ids = ids_of("sixteen", length=10 * PAGE)
    sampling = pb.SamplingParams(temperature=1.0, n=16, seed=4)
    request = ask_ids(BASE, ids, OUT // 2, sampling=sampling, output=pb.OutputParams(top_logprobs=0))
    same(await tight.run(request), await lab.run(request))
    await tight.world.idle()


async def test_the_longest_request_has_room_and_ends(tight: Lab) -> None:
    """To the last position of the context, beside others that want the same."""
    ids = ids_of("longest", length=300)
    answers = await asyncio.gather(*(tight.run(ask_ids(BASE, ids, 212), who) for who in (tight.acme, tight.guest) * 2))
    assert len({tuple(answer.ids) for answer in answers}) == 1
    path = answers[0].ids
    assert path == tight.base.logits([*ids, *path])[len(ids) - 1 : -1].argmax(-1).tolist()
    await tight.world.idle()
