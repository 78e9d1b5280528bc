"""What transformers + peft do with the same work: static batches, mixed adapters by ``adapter_names``.

    python benchmarks/peft_baseline.py [--at-once 8] [--adapters 8]

``measure`` is imported by bench_serving.py. The work: N requests at once, each 128 random prompt ids in and 64 greedy
tokens out with end-of-text off, request i on adapter i mod M (M = 0: all on the base, no PEFT wrapper at all).
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from bench_adapters import load_spec, write_random_adapters
from peft import PeftModel
from transformers import AutoModelForCausalLM, GenerationConfig, StoppingCriteria
from transformers.utils import logging as transformers_logging

from lorry.cli.model import prepare_smollm2
from lorry.config import lorry_home


@dataclass(frozen=True, slots=True)
class BaselineResult:
    """Times in milliseconds. ``tokens_per_second`` counts output tokens over the wall time of whole batches."""

    at_once: int
    adapters: int
    tokens_per_second: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    itl_p50_ms: float
    itl_p95_ms: float


class _Stamps(StoppingCriteria):
    """Never stops; notes when each step of ``generate`` ended."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.at.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def quantile(values: Sequence[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(fraction * (len(ordered) - 1)))]


class PeftBaseline:
    """The base, and the given adapters loaded beside each other under the names ``a0``, ``a1``, ..."""

    def __init__(self, base_dir: Path, adapters: Sequence[Path], *, dtype: torch.dtype = torch.bfloat16) -> None:
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # theirs has no hints
        self.vocabulary = load_spec(base_dir).vocabulary
        self.names = [f"a{index}" for index in range(len(adapters))]
        self._model: Any = AutoModelForCausalLM.from_pretrained(base_dir, dtype=dtype)
        for name, folder in zip(self.names, adapters, strict=True):
            if isinstance(self._model, PeftModel):
                self._model.load_adapter(folder, name, autocast_adapter_dtype=False)
            else:
                self._model = PeftModel.from_pretrained(self._model, folder, name, autocast_adapter_dtype=False)
        self._model.eval()

    @torch.inference_mode()
    def batch(self, at_once: int, prompt_tokens: int, output_tokens: int, seed: int) -> list[float]:
        """One static batch. Seconds from its start to the end of each step; ``output_tokens`` of them."""
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(17, self.vocabulary, (at_once, prompt_tokens), generator=generator)
        options: dict[str, Any] = {}
        if self.names:
            options["adapter_names"] = [self.names[row % len(self.names)] for row in range(at_once)]
        stamps = _Stamps()
        greedy = GenerationConfig(  # type: ignore[no-untyped-call]  # theirs has no hints
            max_new_tokens=output_tokens, min_new_tokens=output_tokens, do_sample=False, pad_token_id=0
        )
        started = time.perf_counter()
        self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            generation_config=greedy,
            stopping_criteria=[stamps],
            **options,
        )
        return [at - started for at in stamps.at]

    def measure(
        self, at_once: int, *, prompt_tokens: int = 128, output_tokens: int = 64, batches: int = 2, seed: int = 0
    ) -> BaselineResult:
        """``batches`` timed batches after a short warm-up, nothing else running on the machine."""
        self.batch(at_once, prompt_tokens, 2, seed)
        runs = [self.batch(at_once, prompt_tokens, output_tokens, seed + 1 + i) for i in range(batches)]
        firsts = [run[0] for run in runs]
        gaps = [later - earlier for run in runs for earlier, later in pairwise(run)]
        return BaselineResult(
            at_once=at_once,
            adapters=len(self.names),
            tokens_per_second=at_once * sum(len(run) for run in runs) / sum(run[-1] for run in runs),
            ttft_p50_ms=1e3 * quantile(firsts, 0.5),
            ttft_p95_ms=1e3 * quantile(firsts, 0.95),
            itl_p50_ms=1e3 * quantile(gaps, 0.5),
            itl_p95_ms=1e3 * quantile(gaps, 0.95),
        )


def measure(base_dir: Path, adapters: Sequence[Path], at_once: int, *, batches: int = 2) -> BaselineResult:
    """Load, measure one cell, forget. For several cells of the same adapters keep a ``PeftBaseline``."""
    return PeftBaseline(base_dir, adapters).measure(at_once, batches=batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, default=8, help="requests in a batch (default: %(default)s)")
    parser.add_argument("--adapters", type=int, default=8, help="rank-16 adapters in it (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=2, help="timed batches (default: %(default)s)")
    arguments = parser.parse_args()
    base_dir = prepare_smollm2(lorry_home())
    with tempfile.TemporaryDirectory() as scratch:
        adapters = write_random_adapters(Path(scratch), base_dir, arguments.adapters)
        result = measure(base_dir, adapters, arguments.at_once, batches=arguments.batches)
    print(json.dumps(asdict(result), indent=2))


if __name__ == "__main__":
    main()
