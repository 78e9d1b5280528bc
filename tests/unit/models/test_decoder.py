"""The decoder, through the runner, against transformers in float32."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from lorry.engine.arena import AdapterArena
from lorry.engine.runner import CpuRunner
from lorry.errors import UnsupportedBase
from lorry.ids import BASE_SLOT, Generation, PageId, SequenceId
from lorry.layers.adapted import ExtraRows
from lorry.layers.kv import KVView
from lorry.models.decoder import Decoder
from lorry.models.weights import load_tensors, read_spec
from lorry.request import SamplingParams
from lorry.scheduler.plan import NewSequence, SequenceStep, StepPlan
from tests.support.tiny_base import write_tiny_base

PAGE = 8


class Recorded(Decoder):
    """Keeps the logits of every step."""

    def head(self, hidden: torch.Tensor, own: Sequence[ExtraRows] = ()) -> torch.Tensor:
        logits = super().head(hidden, own)
        self.logits.append(logits)
        return logits

    logits: list[torch.Tensor]


def make(folder: Path) -> tuple[CpuRunner, Recorded]:
    spec = read_spec(folder)
    decoder = Recorded(spec, load_tensors(folder, spec, torch.float32))
    decoder.logits = []
    runner = CpuRunner(decoder, KVView.allocate(spec, 64, PAGE), AdapterArena(spec, 1, 8), lambda digest: None)
    return runner, decoder


SHAPES: list[dict[str, Any]] = [
    {},
    {"tie_word_embeddings": False},
    {"num_key_value_heads": 4},
    {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 96},
    {"rope_theta": 100000.0},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("chunks", [(41,), (20, 21), (8, 1, 1, 30, 1)], ids=str)
def test_logits_equal_transformers(tmp_path: Path, shape: dict[str, Any], chunks: tuple[int, ...]) -> None:
    model = write_tiny_base(tmp_path, **shape)
    runner, decoder = make(tmp_path)
    ids = torch.randint(0, 256, (41,), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        want = model(ids[None]).logits[0]
    table = tuple(PageId(p) for p in (7, 3, 21, 4, 11, 2))
    start = 0
    for number, length in enumerate(chunks):
        new = (NewSequence(SequenceId(1), tuple(ids.tolist()), 41, SamplingParams(temperature=0)),)
        step = SequenceStep(SequenceId(1), start, length, 1, BASE_SLOT, Generation(0), None, table)
        runner.submit(StepPlan(number, (), new if number == 0 else (), (), (), (step,)))
        start += length
        torch.testing.assert_close(decoder.logits[-1][0], want[start - 1], atol=1e-3, rtol=1e-3)


def test_sharded_weights_are_one_model(tmp_path: Path) -> None:
    model = write_tiny_base(tmp_path / "whole", tie_word_embeddings=False)
    model.save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 2
    spec = read_spec(tmp_path / "shards")
    whole = load_tensors(tmp_path / "whole", spec, torch.float32)
    shards = load_tensors(tmp_path / "shards", spec, torch.float32)
    assert whole.keys() == shards.keys()
    assert all(torch.equal(whole[name], shards[name]) for name in whole)
    victim = next((tmp_path / "shards").glob("model-00002-*.safetensors"))
    victim.unlink()
    with pytest.raises(UnsupportedBase, match=victim.name):
        load_tensors(tmp_path / "shards", spec, torch.float32)


def test_a_mixed_batch_of_decode_and_prefill_rows(tmp_path: Path) -> None:
    model = write_tiny_base(tmp_path)
    runner, decoder = make(tmp_path)
    generator = torch.Generator().manual_seed(5)
    lengths = [5, 17, 30]
    prompts = [torch.randint(0, 256, (n,), generator=generator) for n in lengths]
    tables = [tuple(PageId(p) for p in range(i * 5, i * 5 + 5)) for i in range(3)]
    new = tuple(
        NewSequence(SequenceId(i), tuple(p.tolist()), len(p), SamplingParams(temperature=0))
        for i, p in enumerate(prompts)
    )

    def part(i: int, start: int, length: int, rows: int) -> SequenceStep:
        return SequenceStep(SequenceId(i), start, length, rows, BASE_SLOT, Generation(0), None, tables[i])

    runner.submit(StepPlan(0, (), new, (), (), (part(1, 0, 16, 0), part(0, 0, 4, 0), part(2, 0, 9, 0))))
    runner.submit(StepPlan(1, (), (), (), (), (part(2, 9, 21, 1), part(0, 4, 1, 1), part(1, 16, 1, 1))))
    logits = decoder.logits[-1]
    # The runner sorts single-token rows first, then by sequence.
    for row, i in enumerate((0, 1, 2)):
        with torch.inference_mode():
            want = model(prompts[i][None]).logits[0, -1]
        torch.testing.assert_close(logits[row], want, atol=1e-3, rtol=1e-3)


def test_a_page_is_cleared_when_it_changes_owner(tmp_path: Path) -> None:
    """NaN left in a page by one sequence does not reach the next one that gets it."""
    model = write_tiny_base(tmp_path)
    runner, decoder = make(tmp_path)
    runner._kv.clear([PageId(3)])
    runner._kv.arena[3] = float("nan")
    ids = (5, 6, 7)
    new = (NewSequence(SequenceId(1), ids, 3, SamplingParams(temperature=0)),)
    steps = [
        SequenceStep(SequenceId(1), 0, 2, 0, BASE_SLOT, Generation(0), None, (PageId(3),)),
        SequenceStep(SequenceId(1), 2, 1, 1, BASE_SLOT, Generation(0), None, (PageId(3),)),
    ]
    runner.submit(StepPlan(0, (), new, (), (), (steps[0],)))
    runner.submit(StepPlan(1, (), (), (), (), (steps[1],)))
    with torch.inference_mode():
        want = model(torch.tensor([ids])).logits[0, -1]
    torch.testing.assert_close(decoder.logits[-1][0], want, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", "gemma2"),
        ("hidden_act", "gelu"),
        ("attention_bias", "yes"),
        ("rope_scaling", {"rope_type": "dynamic", "factor": 8.0}),
        ("quantization_config", {"quant_method": "gptq"}),
        ("sliding_window", 4096),
        ("num_hidden_layers", 0),
        ("vocab_size", "many"),
    ],
)
def test_a_config_that_is_not_computed_is_refused_by_name(tmp_path: Path, field: str, value: object) -> None:
    write_tiny_base(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config.pop("rope_parameters", None)
    config[field] = value
    path.write_text(json.dumps(config))
    with pytest.raises(UnsupportedBase, match=field):
        read_spec(tmp_path)


def test_missing_and_unexpected_tensors_are_refused_by_name(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    write_tiny_base(tmp_path)
    spec = read_spec(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    gone = {k: v for k, v in tensors.items() if k != "model.layers.1.mlp.up_proj.weight"}
    save_file(gone, path)
    with pytest.raises(UnsupportedBase, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        load_tensors(tmp_path, spec, torch.float32)
    save_file({**tensors, "model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}, path)
    with pytest.raises(UnsupportedBase, match=r"q_proj\.bias"):
        load_tensors(tmp_path, spec, torch.float32)
    path.unlink()
    with pytest.raises(UnsupportedBase, match="missing"):
        load_tensors(tmp_path, spec, torch.float32)
