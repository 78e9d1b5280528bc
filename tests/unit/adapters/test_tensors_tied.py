"""Embedding and head of a tied base: what is stated twice must be equal, and what cannot be is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .craft import tensors
from .judging import (
    BOTH,
    DELTA,
    EMBED,
    EMBED_PAIR,
    HEAD,
    LARGER,
    PAIR,
    ROWS,
    TIED,
    TIED_PAIR,
    Arrays,
    judge,
    plan_of,
    some,
)

TIED_BAD: dict[str, tuple[dict[str, Any], Arrays, str, str]] = {
    "a tied pair that differs": (
        {"target_modules": BOTH, "ensure_weight_tying": True},
        {**EMBED_PAIR, **TIED_PAIR, f"{HEAD}.lora_A.weight": some(4, 16) * 3},
        "tensors.twins",
        "lora_embedding_B turned",
    ),
    "a tied matrix that differs": (
        {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
        {f"{EMBED}.weight": some(ROWS, 16), f"{HEAD}.weight": some(ROWS, 16) * 2},
        "tensors.twins",
        "lm_head.weight is not",
    ),
    "a tied matrix that is not there": (
        {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
        {f"{EMBED}.weight": some(ROWS, 16)},
        "config.modules_to_save",
        "lm_head is named",
    ),
    "a larger vocabulary that differs": (
        {},
        {f"{EMBED}.weight": some(LARGER, 16), f"{HEAD}.weight": some(LARGER, 16) * 2},
        "tensors.twins",
        "lm_head.weight is not",
    ),
    "tied tokens that differ": (
        {"trainable_token_indices": [3]},
        {f"{EMBED}.{DELTA}": some(1, 16), f"{HEAD}.{DELTA}": some(1, 16) * 2},
        "tensors.twins",
        "and one is to stand for both",
    ),
    "tied tokens and a whole head": (
        {"trainable_token_indices": [3], "modules_to_save": ["lm_head"]},
        {f"{EMBED}.{DELTA}": some(1, 16), f"{HEAD}.weight": some(ROWS, 16)},
        "config.modules_to_save",
        "is tied to embed_tokens",
    ),
    "tied tokens of other ids": (
        {"trainable_token_indices": {"embed_tokens": [3], "lm_head": [4]}, "ensure_weight_tying": True},
        {f"{EMBED}.{DELTA}": some(1, 16), f"{HEAD}.{DELTA}": some(1, 16)},
        "config.ensure_weight_tying",
        "other ids",
    ),
    "a tied head without its magnitude": (
        {"target_modules": ["embed_tokens"], "ensure_weight_tying": True, "use_dora": True},
        {**EMBED_PAIR, f"{EMBED}.lora_magnitude_vector": some(16)},
        "config.use_dora",
        "has no lora_magnitude_vector",
    ),
    "tied tokens under DoRA": (
        {"target_modules": ["lm_head"], "trainable_token_indices": [3], "use_dora": True},
        {**PAIR, f"{HEAD}.lora_magnitude_vector": some(ROWS), f"{EMBED}.{DELTA}": some(1, 16)},
        "config.trainable_token_indices",
        "under DoRA",
    ),
    "a tied head without an embedding": (
        {"target_modules": ["lm_head"], "ensure_weight_tying": True},
        PAIR,
        "config.ensure_weight_tying",
        "embed_tokens, which has no tensors",
    ),
}


@pytest.mark.parametrize("kind", TIED_BAD)
def test_what_a_tied_base_cannot_take_is_refused(tmp_path: Path, kind: str) -> None:
    fields, arrays, id, message = TIED_BAD[kind]
    base = {} if fields.get("use_dora") or "target_modules" in fields else tensors()
    report = judge(tmp_path, fields, arrays, TIED, base)
    failed = [check.message for check in report.failed if check.id == id]
    assert any(message in one for one in failed), report.to_dict()["checks"]


def test_a_tied_head_reads_the_embedding_s_pair_where_it_has_none(tmp_path: Path) -> None:
    """PEFT's parameters are views of one memory, so a file with one of them holds both."""
    fields = {"target_modules": BOTH, "ensure_weight_tying": True, "alpha_pattern": {"lm_head": 2}}
    plan = plan_of(judge(tmp_path, fields, EMBED_PAIR, TIED))
    assert plan.head is not None
    module = plan.head.module
    assert module is not None
    assert module.transposed
    assert (module.a_tensor, module.b_tensor) == (f"{EMBED}.lora_embedding_B", f"{EMBED}.lora_embedding_A")
    assert (module.rank, module.scale) == (4, 0.5)
    own = plan_of(judge(tmp_path / "own", fields, {**EMBED_PAIR, **TIED_PAIR}, TIED)).head
    assert own is not None
    assert own.module is not None
    assert (own.module.transposed, own.module.rank, own.module.scale) == (False, 4, 0.5)
