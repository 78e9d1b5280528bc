"""The device's slot table has the last word: what is not the planned fill of the planned adapter is not run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lorry.engine.arena import SlotEntry
from lorry.errors import SlotIntegrity
from lorry.ids import BASE_SLOT, AdapterDigest, AdapterKey, Generation, PageId, SequenceId, SlotId
from lorry.scheduler.plan import NewSequence, SequenceResult, SequenceStep, StepPlan
from tests.support.adapters import key_of
from tests.support.tiny_base import write_tiny_base
from tests.unit.engine.plans import GREEDY, Planner

SLOT, OWN, OTHER = SlotId(1), key_of(AdapterDigest("a" * 64)), key_of(AdapterDigest("b" * 64))
THEIRS = key_of(OWN.digest, "a_theirs")
"""The same bytes, loaded for another adapter."""
PROMPT = (7, 9, 30)


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Planner:
    folder = tmp_path_factory.mktemp("foreign")
    write_tiny_base(folder)
    return Planner(folder)


def run(planner: Planner, lies_there: SlotEntry | None, number: int) -> SequenceResult:
    """One step of a sequence that was planned on fill 2 of a slot with OWN."""
    arena = planner.arena
    arena._slots.pop(SLOT, None)
    if lies_there is not None:
        arena._slots[SLOT] = lies_there
    sequence, count = SequenceId(number), len(PROMPT)
    new = NewSequence(sequence, PROMPT, count, GREEDY)
    step = SequenceStep(sequence, 0, count, 1, SLOT, Generation(2), OWN, (PageId(0),))
    (result,) = planner.runner.submit(StepPlan(number, (), (new,), (), (), (step,))).result().results
    return result


def test_a_slot_that_is_not_the_planned_fill_runs_nothing(planner: Planner) -> None:
    def entry(generation: int, adapter: AdapterKey) -> SlotEntry:
        return SlotEntry(Generation(generation), adapter, (), planner.arena._sums(()))

    foreign = (None, entry(1, OWN), entry(3, OWN), entry(2, OTHER), entry(2, THEIRS))
    for number, lies_there in enumerate(foreign):
        result = run(planner, lies_there, number)
        assert (result.tokens, result.adapter, result.fault) == ((), None, SlotIntegrity.reason)
    result = run(planner, entry(2, OWN), len(foreign))
    assert (len(result.tokens), result.adapter, result.fault) == (1, OWN, None)


@pytest.mark.parametrize("where", ["prompt", "logit_bias"])
def test_an_id_without_a_row_ends_its_sequence_alone(planner: Planner, where: str) -> None:
    """The gateway and the engine refuse such ids by the registry's vocabulary, which may not be the image's."""
    rows = planner.runner._decoder.spec.vocabulary
    count, first = len(PROMPT), 90 if where == "prompt" else 95

    def named(sequence: int, last: int) -> NewSequence:
        if where == "prompt":
            return NewSequence(SequenceId(sequence), (7, last, 30), count, GREEDY)
        return NewSequence(SequenceId(sequence), PROMPT, count, replace(GREEDY, logit_bias=((2, 0.5), (last, -1.0))))

    new = [named(first, rows - 1), named(first + 1, rows)]
    steps = [
        SequenceStep(one.sequence, 0, count, 1, BASE_SLOT, Generation(0), None, (PageId(i),))
        for i, one in enumerate(new)
    ]
    results = planner.runner.submit(StepPlan(first, (), tuple(new), (), (), tuple(steps))).result().results
    found = {result.sequence: (len(result.tokens), result.fault) for result in results}
    assert found == {SequenceId(first): (1, None), SequenceId(first + 1): (0, SlotIntegrity.reason)}
