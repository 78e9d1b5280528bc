"""Which batches the multi-LoRA kernels are proven on, and what they are held against."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch
from gpu import check_lora
from gpu.log import Log
from gpu.lora_cases import LoraBatch, Mix
from gpu.lora_oracle import oracle
from gpu.lora_placed import Placed
from gpu.machine import Interpreter
from gpu.sizes import FULL, TOY

from tests.kernels.lora_site import site


def test_the_full_lora_cases_are_what_the_interpreter_is_too_slow_for() -> None:
    shapes = {(case.k, case.widths) for case in FULL.lora}
    assert shapes >= {(11008, (4096,)), (4096, (11008,)), (4096, (14336,)), (14336, (4096,))}
    head = next(case for case in FULL.lora if case.wide)
    assert (head.k, head.widths) == (FULL.shape.hidden, (FULL.vocabulary,))
    for case in FULL.lora:
        batches = [batch for batch in case.batches if max(case.k, *case.widths) > 1536]
        assert not batches or max(batch.tokens for batch in batches) >= 256
    every = [batch for case in FULL.lora for batch in case.batches]
    assert {1, 17, 256, 1000} <= {batch.tokens for batch in every}
    assert {batch.mix for batch in every} == set(get_args(Mix))
    assert {-2.0, 0.0, 1.0} == {batch.scale for batch in every}
    assert {(batch.sliced, batch.size > 1) for batch in every} >= {(True, False), (False, True), (False, False)}


def test_rows_of_a_batch_are_whose_its_mix_says() -> None:
    def slots(mix: Mix, tokens: int = 6) -> list[int]:
        return LoraBatch("decode", tokens, mix).slots(4)

    assert slots("shared") == [2] * 6
    assert slots("one each") == [0, 1, 2, 3, -1, -1]
    assert slots("interleaved") == [-1, 1, 3, 0, 2, -1]
    assert slots("skewed") == [0, 1, 2, 2, 2, 2]
    assert slots("base") == [-1] * 6
    assert set(slots("random", 100)) == {-1, 0, 1, 2, 3}


@pytest.mark.parametrize(("shared", "extras"), [(False, "all"), (True, "gain"), (False, "none")])
def test_the_oracle_of_many_rows_is_the_loops(shared: bool, extras: str) -> None:
    made = site(
        64, (48, 16), 4, 2, lambda slot, s: (17, 3, 0)[(slot + s) % 3], torch.float16, shared=shared, extras=extras
    )
    slots = [0, 3, -1, 1, 0, 2]
    x, y = made.batch(len(slots))
    want = made.reference(slots, x, y)
    assert torch.allclose(oracle(made, slots, x, y), want, rtol=0, atol=1e-12)
    assert not torch.allclose(oracle(made, slots, x, y, -1.0), want, rtol=0, atol=1e-2)


def test_logits_that_are_rounded_to_the_adapters_type_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Placed.run
    monkeypatch.setattr(Placed, "run", lambda *asked: run(*asked).half().float())
    log = Log("some", 3600.0, say=lambda text: None)
    sizes = replace(TOY, routing=(), lora=tuple(case for case in TOY.lora if case.wide))
    found = log.run(lambda: check_lora.run(Interpreter(), sizes, log))
    assert found.state == "done"
    assert found.failed[0].what == found.checks[0].what == "decode K=16 N=16 y fp32 fp16, 2 rows one each"
