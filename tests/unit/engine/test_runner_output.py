"""Penalties and logprobs of the runner under hand-made plans, against transformers and the plain loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LogitsProcessorList, RepetitionPenaltyLogitsProcessor, SequenceBiasLogitsProcessor

from lorry.engine import sampler
from lorry.errors import NonFiniteLogits
from lorry.request import OutputParams, SamplingParams
from tests.support.tiny_base import write_tiny_base
from tests.unit.engine.plans import GREEDY, Planner, Run, check_logprobs, oracle_ids, oracle_logprobs

HEAVY = SamplingParams(
    temperature=0.8,
    top_p=0.95,
    seed=2**40 + 7,
    repetition_penalty=1.4,
    frequency_penalty=0.6,
    presence_penalty=0.9,
    logit_bias=((5, 3.0), (17, -2.0), (300, 4.5)),
)
PROMPT = [7, 9, 7, 30, 12, 250, 9, 9, 61, 3, 18, 44, 7, 90, 200, 201, 202, 5, 6]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runner") / "base"


@pytest.fixture(scope="module")
def model(base: Path) -> Any:
    return write_tiny_base(base)


@pytest.fixture(scope="module")
def planner(base: Path, model: Any) -> Planner:
    return Planner(base)


@pytest.mark.parametrize("chunk", [64, 5], ids=["whole", "chunked"])
def test_greedy_repetition_penalty_and_bias_are_transformers_own(model: Any, planner: Planner, chunk: int) -> None:
    bias: Any = {(11,): 2.5, (40,): -3.0}
    processors: Any = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.7), SequenceBiasLogitsProcessor(bias)])
    ids = torch.tensor([PROMPT])
    with torch.inference_mode():
        for _ in range(24):
            ids = torch.cat([ids, processors(ids, model(ids).logits[:, -1]).argmax(-1, keepdim=True)], 1)
    want = ids[0, len(PROMPT) :].tolist()
    sampling = replace(GREEDY, repetition_penalty=1.7, logit_bias=((11, 2.5), (40, -3.0)))
    run, plain = Run(PROMPT, sampling, 24, chunk=chunk), Run(PROMPT, GREEDY, 24, chunk=chunk)
    planner.run(run, plain)
    assert run.ids == want
    assert plain.ids != want


@pytest.mark.parametrize("sampling", [HEAVY, replace(HEAVY, temperature=0.0)], ids=["sampled", "greedy"])
@pytest.mark.parametrize("chunk", [64, 4], ids=["whole", "chunked"])
def test_all_penalties_equal_the_plain_loops(
    model: Any, planner: Planner, sampling: SamplingParams, chunk: int
) -> None:
    run = Run(PROMPT, sampling, 24, choice=3, chunk=chunk)
    planner.run(run)
    assert run.ids == oracle_ids(model, PROMPT, 24, sampling, choice=3)
    unpunished = replace(sampling, repetition_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0, logit_bias=())
    assert run.ids != oracle_ids(model, PROMPT, 24, unpunished, choice=3)


@pytest.mark.parametrize("name", ["repetition_penalty", "frequency_penalty", "presence_penalty"])
@pytest.mark.parametrize("resume_at", [1, 6, 11])
def test_a_resumed_sequence_counts_what_it_had_counted(planner: Planner, name: str, resume_at: int) -> None:
    changes: dict[str, Any] = {name: 1.6}
    sampling = replace(GREEDY, **changes)
    whole, resumed = Run(PROMPT, sampling, 20), Run(PROMPT, sampling, 20, resume_at=resume_at, chunk=7)
    planner.run(whole, resumed)
    assert resumed.ids == whole.ids


def test_batch_mates_change_nothing(planner: Planner) -> None:
    def runs() -> list[Run]:
        return [
            Run(PROMPT, HEAVY, 12),
            Run(PROMPT, replace(HEAVY, seed=1), 12, output=OutputParams(top_logprobs=3)),
            Run(PROMPT[3:], GREEDY, 12),
            Run(PROMPT[5:], SamplingParams(seed=3), 12, output=OutputParams(prompt_logprobs=2), chunk=4),
        ]

    alone, together = runs(), runs()
    for run in alone:
        planner.run(run)
    planner.run(*together)
    assert [run.ids for run in together] == [run.ids for run in alone]


def test_only_sequences_with_penalties_keep_counts(planner: Planner) -> None:
    heavy, plain = Run(PROMPT, HEAVY, 2), Run(PROMPT, GREEDY, 2)
    planner.run(heavy, plain)
    states = planner.runner._sequences
    assert states[heavy.sequence].penalties is not None
    assert states[plain.sequence].penalties is None


@pytest.mark.parametrize("top", [0, 1, 20])
@pytest.mark.parametrize("sampling", [GREEDY, HEAVY], ids=["greedy", "penalties"])
def test_output_logprobs_are_the_models_own_distribution(
    model: Any, planner: Planner, sampling: SamplingParams, top: int
) -> None:
    run = Run(PROMPT, sampling, 12, output=OutputParams(top_logprobs=top), chunk=6)
    quiet = Run(PROMPT, sampling, 12)
    planner.run(run, quiet)
    check_logprobs(run.logprobs, run.ids, oracle_logprobs(model, PROMPT, run.ids)[len(PROMPT) - 1 : -1], top)
    assert run.ids == quiet.ids
    assert quiet.logprobs == quiet.prompt_logprobs == []


@pytest.mark.parametrize("chunk", [200, 100, 7], ids=["whole", "over a piece", "small"])
def test_prompt_logprobs_are_the_models_own_distribution(model: Any, planner: Planner, chunk: int) -> None:
    assert sampler.SCORE_ROWS < 100, "more than one piece, or the seams are not shown"
    generator = torch.Generator().manual_seed(5)
    prompt = torch.randint(0, 320, (150,), generator=generator).tolist()
    run = Run(prompt, GREEDY, 3, output=OutputParams(prompt_logprobs=4), chunk=chunk)
    mate = Run(PROMPT, HEAVY, 3)
    planner.run(run, mate)
    check_logprobs(run.prompt_logprobs, prompt[1:], oracle_logprobs(model, prompt, [])[:-1], 4)
    assert run.logprobs == []
    alone = Run(PROMPT, HEAVY, 3)
    planner.run(alone)
    assert mate.ids == alone.ids


@pytest.mark.parametrize("row", [0, -1], ids=["a scored row", "the row drawn from"])
def test_a_row_that_is_not_finite_ends_its_sequence_without_logprobs(
    planner: Planner, monkeypatch: pytest.MonkeyPatch, row: int
) -> None:
    """Sequences stand in the batch by their ids: the first is hurt, the other is not."""
    hidden: Callable[..., torch.Tensor] = planner.decoder.hidden
    output = OutputParams(top_logprobs=2, prompt_logprobs=2)

    def broken(*args: Any) -> torch.Tensor:
        found = hidden(*args)
        found[row if row >= 0 else len(PROMPT) - 1] = torch.inf
        return found

    hurt, whole = Run(PROMPT, GREEDY, 1, output=output), Run(PROMPT, GREEDY, 1, output=output)
    with monkeypatch.context() as patch:
        patch.setattr(planner.decoder, "hidden", broken)
        planner.run(hurt, whole)
    assert (hurt.fault, hurt.ids, hurt.logprobs, hurt.prompt_logprobs) == (NonFiniteLogits.reason, [], [], [])
    assert whole.fault is None
    assert (len(whole.ids), len(whole.logprobs), len(whole.prompt_logprobs)) == (1, 1, len(PROMPT) - 1)
