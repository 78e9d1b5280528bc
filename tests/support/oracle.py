"""What transformers answers greedily, up to where its choice is a tie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def generated(model: Any, prompt: Sequence[int], count: int, tie: float) -> tuple[list[int], int]:
    """``count`` greedy ids, and how many of them come before the first whose two likeliest logits differ by less than
    ``tie``."""
    model.generation_config.eos_token_id = None
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        found = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
    gaps = [float(top[0, 0] - top[0, 1]) for top in (torch.topk(logits, 2).values for logits in found.logits)]
    tokens: list[int] = found.sequences[0, len(prompt) :].tolist()
    assert len(tokens) == count
    return tokens, next((i for i, gap in enumerate(gaps) if gap < tie), count)


__all__ = ["generated"]
