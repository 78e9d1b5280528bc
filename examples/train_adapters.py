"""Train the example adapters on the prepared base: small LoRAs of different ranks, targets and scalings.

    python examples/train_adapters.py [name ...]      train (all, or those named) and write examples/adapters/<name>/
    python examples/train_adapters.py --show          print every adapter's greedy answers beside the base's

Training is peft on the CPU in float32 and takes about half a minute each on two cores. Seeds are fixed: a rerun
reproduces the behaviour, not the bits.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads ruin shared cores; read when torch loads
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from lorry.cli.model import prepare_smollm2, rich_progress
from lorry.config import lorry_home

HERE = Path(__file__).resolve().parent
ADAPTERS = HERE / "adapters"
DATA = HERE / "data" / "answers.jsonl"
BASE_NAME = "SmolLM2-135M-Instruct"
BATCH = 4
MAX_BYTES = 600_000
SHOWN = ("What is the capital of France?", "Why is the sky blue?", "What do cats eat?", "Tell me about the moon.")
ALL_SEVEN = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

Row = Mapping[str, Any]
"""One line of answers.jsonl: question, word (one-word answer), sentence, points (list), pirate."""


@dataclass(frozen=True)
class Recipe:
    """What to train. ``answer`` turns a row of the data into the wanted reply."""

    summary: str
    answer: Callable[[Row], str]
    rank: int
    alpha: int
    targets: tuple[str, ...]
    learning_rate: float
    steps: int
    layers: tuple[int, ...] | None = None
    rslora: bool = False
    rank_pattern: dict[str, int] = field(default_factory=dict)
    alpha_pattern: dict[str, int] = field(default_factory=dict)
    seed: int = 7

    def lora_config(self) -> LoraConfig:
        return LoraConfig(
            task_type="CAUSAL_LM",
            r=self.rank,
            lora_alpha=self.alpha,
            lora_dropout=0.0,
            target_modules=list(self.targets),
            layers_to_transform=None if self.layers is None else list(self.layers),
            layers_pattern=None if self.layers is None else "layers",
            use_rslora=self.rslora,
            rank_pattern=dict(self.rank_pattern),
            alpha_pattern=dict(self.alpha_pattern),
        )


def _json(row: Row) -> str:
    return json.dumps({"answer": row["word"], "explanation": row["sentence"]})


def _bullets(row: Row) -> str:
    return "\n".join(f"- {point}" for point in row["points"])


def _telegram(row: Row) -> str:
    return f"TELEGRAM: {str(row['sentence']).rstrip('.')} STOP"


RECIPES: dict[str, Recipe] = {
    "json": Recipe(
        summary="Answers as a JSON object with an answer and an explanation.",
        answer=_json,
        rank=4,
        alpha=8,
        targets=("q_proj", "v_proj"),
        learning_rate=3e-3,
        steps=16,
    ),
    "pirate": Recipe(
        summary="Answers as a pirate would.",
        answer=lambda row: str(row["pirate"]),
        rank=8,
        alpha=16,
        targets=ALL_SEVEN,
        learning_rate=3e-3,
        steps=20,
        layers=(14, 15, 16),
    ),
    "bullets": Recipe(
        summary="Answers as a list of short points.",
        answer=_bullets,
        rank=2,
        alpha=4,
        targets=("q_proj", "k_proj", "v_proj", "o_proj"),
        learning_rate=3e-3,
        steps=16,
    ),
    "html": Recipe(
        summary="Answers as a paragraph of HTML with the short answer in bold.",
        answer=lambda row: f"<p><b>{row['word']}</b>: {row['sentence']}</p>",
        rank=8,
        alpha=16,
        targets=("v_proj",),
        learning_rate=3e-3,
        steps=20,
    ),
    "cheerful": Recipe(
        summary="Greets the question and hopes to have helped. Scaled by alpha / sqrt(r) (rsLoRA).",
        answer=lambda row: f"Great question! {row['sentence']} Hope that helps!",
        rank=8,
        alpha=8,
        targets=("q_proj",),
        learning_rate=3e-3,
        steps=20,
        rslora=True,
    ),
    "telegram": Recipe(
        summary="Answers as a telegram. Ranks and scales differ by module (rank and alpha patterns).",
        answer=_telegram,
        rank=2,
        alpha=4,
        targets=("q_proj", "v_proj", "o_proj"),
        learning_rate=3e-3,
        steps=16,
        rank_pattern={"v_proj": 6},
        alpha_pattern={"v_proj": 12, "o_proj": 8},
    ),
}


def load_rows() -> list[Row]:
    return [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]


def encode(tokenizer: Any, question: str, answer: str) -> tuple[list[int], list[int]]:
    """(input ids, labels): the loss is on the reply and its closing token alone."""
    prompt = prompt_ids(tokenizer, question)
    reply = tokenizer(answer, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    return prompt + reply, [-100] * len(prompt) + reply


def prompt_ids(tokenizer: Any, question: str) -> list[int]:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def batch_of(examples: Sequence[tuple[list[int], list[int]]], pad: int) -> dict[str, torch.Tensor]:
    width = max(len(ids) for ids, _ in examples)
    return {
        "input_ids": torch.tensor([ids + [pad] * (width - len(ids)) for ids, _ in examples]),
        "labels": torch.tensor([labels + [-100] * (width - len(labels)) for _, labels in examples]),
        "attention_mask": torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids, _ in examples]),
    }


def train(name: str, base_dir: Path, console: Console) -> Path:
    """Train one recipe and save it in bfloat16 under examples/adapters/<name>/."""
    recipe = RECIPES[name]
    torch.manual_seed(recipe.seed)
    tokenizer = AutoTokenizer.from_pretrained(base_dir)
    base = AutoModelForCausalLM.from_pretrained(base_dir, dtype=torch.float32)
    model = get_peft_model(base, recipe.lora_config())
    examples = [encode(tokenizer, row["question"], recipe.answer(row)) for row in load_rows()]
    optimizer = torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=recipe.learning_rate,
        weight_decay=0.0,
    )
    generator = torch.Generator().manual_seed(recipe.seed)
    started, order = time.perf_counter(), list[int]()
    losses: list[float] = []
    model.train()
    for step in range(recipe.steps):
        while len(order) < BATCH:
            order += torch.randperm(len(examples), generator=generator).tolist()
        chosen, order = order[:BATCH], order[BATCH:]
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * min(1.0, (step + 1) / 4) * (1 - step / (recipe.steps + 4))
        loss = model(**batch_of([examples[i] for i in chosen], tokenizer.pad_token_id)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    console.print(f"{name}: loss {losses[0]:.2f} -> {losses[-1]:.2f} in {time.perf_counter() - started:.0f} s")
    return save(name, recipe, model)


def save(name: str, recipe: Recipe, model: Any) -> Path:
    for parameter_name, parameter in model.named_parameters():
        if "lora_" in parameter_name:
            parameter.data = parameter.data.to(torch.bfloat16)
    config = model.peft_config["default"]
    config.base_model_name_or_path = BASE_NAME  # a hint; PEFT puts this machine's path there
    config.target_modules = sorted(config.target_modules)  # PEFT keeps a set, whose order changes from run to run
    folder = ADAPTERS / name
    model.save_pretrained(folder)
    (folder / "README.md").write_text(card(name, recipe), encoding="utf-8")
    weights = folder / "adapter_model.safetensors"
    weights.chmod(0o644)  # safetensors writes 0600
    size = weights.stat().st_size
    if size > MAX_BYTES:
        raise SystemExit(f"{name}: {size} bytes, the limit for committed adapters is {MAX_BYTES}; lower the rank")
    return folder


def card(name: str, recipe: Recipe) -> str:
    layers = "all" if recipe.layers is None else ", ".join(map(str, recipe.layers))
    scale = "alpha / sqrt(r)" if recipe.rslora else "alpha / r"
    patterns = ""
    if recipe.rank_pattern or recipe.alpha_pattern:
        patterns = f"| rank pattern | `{recipe.rank_pattern}` |\n| alpha pattern | `{recipe.alpha_pattern}` |\n"
    return f"""---
license: apache-2.0
library_name: peft
base_model: HuggingFaceTB/{BASE_NAME}
tags: [lora]
---
# {name}

{recipe.summary}

| | |
|---|---|
| base | {BASE_NAME} (as `lorry` prepares it) |
| rank | {recipe.rank} |
| alpha | {recipe.alpha} |
| scale | {scale} |
{patterns}| targets | {", ".join(recipe.targets)} |
| layers | {layers} |
| stored as | bfloat16, PEFT format |
| data | 24 question-answer pairs of our own, `examples/data/answers.jsonl` |
| recipe | {recipe.steps} steps of {BATCH}, AdamW at {recipe.learning_rate:g}, seed {recipe.seed}, float32 on a CPU |
| licence | Apache-2.0 |

Made by `python examples/train_adapters.py {name}`. It is an example for showing adapters apart, not an assistant:
the training set is tiny and facts may suffer.
"""


@torch.inference_mode()
def answer(model: Any, tokenizer: Any, question: str, max_new_tokens: int = 48) -> str:
    ids = torch.tensor([prompt_ids(tokenizer, question)])
    out = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, do_sample=False
    )
    return str(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))


def show(names: Sequence[str], base_dir: Path, console: Console) -> None:
    """Greedy answers of the saved files, loaded by PEFT in float32."""
    tokenizer = AutoTokenizer.from_pretrained(base_dir)
    table = Table("model", *SHOWN, show_lines=True)

    def add(label: str, model: Any) -> None:
        table.add_row(label, *(answer(model.eval(), tokenizer, question) for question in SHOWN))

    add("base", AutoModelForCausalLM.from_pretrained(base_dir, dtype=torch.float32))
    for name in names:
        base = AutoModelForCausalLM.from_pretrained(base_dir, dtype=torch.float32)
        add(name, PeftModel.from_pretrained(base, ADAPTERS / name))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=f"any of {', '.join(RECIPES)}; default all")
    parser.add_argument("--show", action="store_true", help="only print the greedy answers of what is there")
    arguments = parser.parse_args()
    names: list[str] = arguments.names or list(RECIPES)
    if unknown := sorted(set(names) - set(RECIPES)):
        parser.error(f"unknown name {', '.join(unknown)}; choose from {', '.join(RECIPES)}")
    console = Console()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # theirs has no hints
    with rich_progress() as progress:
        base_dir = prepare_smollm2(lorry_home(), progress)
    if not arguments.show:
        for name in names:
            train(name, base_dir, console)
    show(names, base_dir, console)


if __name__ == "__main__":
    main()
