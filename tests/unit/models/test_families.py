"""Every family and feature as a tiny random model: all logits equal those of transformers in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.tiny_base import write_tiny_model
from tests.unit.models.driver import Driver

LENGTH = 83
ATOL = 1e-4
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 5000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 10000.0,
}
QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": 19}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama untied": ("llama", {"tie_word_embeddings": False}),
    "llama attention bias": ("llama", {"attention_bias": True}),
    "llama mlp bias": ("llama", {"mlp_bias": True, "attention_bias": True}),
    "llama wide heads": ("llama", {"head_dim": 24, "num_attention_heads": 4, "num_key_value_heads": 1}),
    "llama linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0}}),
    "llama 3": ("llama", {"rope_parameters": LLAMA3}),
    "llama yarn": ("llama", {"rope_parameters": YARN}),
    "mistral window": ("mistral", {"sliding_window": 19, "tie_word_embeddings": False}),
    "mistral window of one": ("mistral", {"sliding_window": 1}),
    "mistral window of a page": ("mistral", {"sliding_window": 5}),
    "mistral window never reached": ("mistral", {"sliding_window": 200}),
    "mistral no window": ("mistral", {"sliding_window": None, "head_dim": 24}),
    "mistral yarn": ("mistral", {"sliding_window": 40, "rope_parameters": YARN}),
    "qwen2": ("qwen2", {"tie_word_embeddings": False}),
    "qwen2 tied, odd heads": ("qwen2", {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 96}),
    "qwen2 some layers": ("qwen2", {**QWEN_WINDOW, "max_window_layers": 1, "num_hidden_layers": 3}),
    "qwen2 all layers": ("qwen2", {**QWEN_WINDOW, "max_window_layers": 0}),
    "qwen2 yarn": ("qwen2", {"rope_parameters": {**YARN, "beta_fast": 16, "beta_slow": 2, "truncate": False}}),
    "qwen3": ("qwen3", {"head_dim": 24}),
    "qwen3 untied, biased": ("qwen3", {"tie_word_embeddings": False, "attention_bias": True}),
    "qwen3 layer types": (
        "qwen3",
        {
            **QWEN_WINDOW,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "num_hidden_layers": 3,
        },
    ),
    "qwen3 linear": ("qwen3", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}}),
}


def tokens(length: int, seed: int) -> list[int]:
    return torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def oracle(model: Any, ids: list[int]) -> torch.Tensor:
    """Without a cache: transformers' own caches of windowed layers are no part of what is compared."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids]), use_cache=False).logits[0]
    return logits


@pytest.mark.parametrize("case", CASES)
def test_all_logits_equal_transformers(tmp_path: Path, case: str) -> None:
    family, changes = CASES[case]
    model = write_tiny_model(tmp_path, family, seed=3, **changes)
    ids = tokens(LENGTH, 3)
    want = oracle(model, ids)
    assert want.std() > 0.1, "or the tolerance would say nothing"
    for page, chunks in ((8, [LENGTH]), (5, [20, 21, 42]), (7, [30, *[1] * 33, 9, 11]), (64, [18, 1, 1, 63])):
        got = Driver(tmp_path, [LENGTH], page).run(ids, chunks)
        torch.testing.assert_close(got, want, atol=ATOL, rtol=0)


@pytest.mark.parametrize(
    "case", ["llama 3", "mistral window", "qwen2 some layers", "qwen2 all layers", "qwen3 layer types"]
)
def test_mixed_sequences_in_one_batch_equal_transformers(tmp_path: Path, case: str) -> None:
    """Rows within the window and far beyond it decode together, beside chunks of other prompts."""
    family, changes = CASES[case]
    model = write_tiny_model(tmp_path, family, seed=4, **changes)
    lengths = [4, 19, 20, 75, 50]
    prompts = [tokens(length, 10 + i) for i, length in enumerate(lengths)]
    driver = Driver(tmp_path, lengths, 5)
    driver.step([(i, 0, prompt[:-1]) for i, prompt in enumerate(prompts[:4])])
    driver.step([(4, 0, prompts[4][:30])])
    got = driver.step(
        [(i, length - 1, prompts[i][-1:]) for i, length in enumerate(lengths[:4])] + [(4, 30, prompts[4][30:])]
    )
    for i, prompt in enumerate(prompts):
        torch.testing.assert_close(got[i], oracle(model, prompt)[-len(got[i]) :], atol=ATOL, rtol=0)


@pytest.mark.parametrize(
    ("case", "chunks"), [("mistral window", [60, 1]), ("mistral window", [60, 2]), ("qwen2 all layers", [60, 1])]
)
def test_pages_before_the_window_are_not_read(tmp_path: Path, case: str, chunks: list[int]) -> None:
    family, changes = CASES[case]
    write_tiny_model(tmp_path, family, **changes)
    ids = tokens(62, 5)
    runs = []
    for poison in (False, True):
        driver = Driver(tmp_path, [62], 4)
        driver.step([(0, 0, ids[:60])])
        if poison:  # positions 0..39; the first that is seen from 60 is 42, in the page after
            driver.kv.arena[driver.tables[0][:10]] = float("nan")
        runs.append(driver.step([(0, 60, ids[60 : 60 + chunks[1]])])[0])
    assert torch.isfinite(runs[0]).all()
    assert torch.equal(*runs)
