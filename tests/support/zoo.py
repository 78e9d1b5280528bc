"""Adapters of every kind that PEFT can save, made and saved by PEFT itself, and what PEFT answers with them.

A ``Kind`` says what to make. ``make`` trains nothing: it gives random values to everything that PEFT would train.
``Truth`` reads the folder again with PEFT on a fresh float32 base, and its logits are what must be met.
"""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import peft
import tokenizers
import torch
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

SINGLE = "adapter_model.safetensors"
INDEX = "model.safetensors.index.json"
"""transformers' own name for the index of an adapter's shards."""
Dtype = Literal["float32", "float16", "bfloat16"]
_DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


class PeftRefused(Exception):
    """PEFT itself does not make this, or does not run what it made."""


@dataclass(frozen=True)
class Kind:
    """``config`` goes to LoraConfig, or IA3Config where ``ia3``. ``edits`` change the saved adapter_config.json.

    ``dtype`` is that of the file. ``shards`` over 1: as transformers writes them, with ``index``. ``vocabulary``: the
    base is resized to so many rows first; ``tokenizer``: the folder then brings a tokenizer of that size.
    ``converted``: saved with ``path_initial_model_for_weight_conversion``, for initialisers that change the base.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    ia3: bool = False
    dtype: Dtype = "float32"
    shards: int = 1
    index: str = INDEX
    vocabulary: int | None = None
    tokenizer: bool = False
    converted: bool = False
    edits: Mapping[str, Any] = field(default_factory=dict)

    def with_(self, **config: Any) -> Kind:
        return replace(self, config={**self.config, **config})


@contextmanager
def quiet() -> Iterator[None]:
    """PEFT and transformers comment on much of what is done here on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def load_base(folder: Path) -> PreTrainedModel:
    """In float32, from the files: the model then names its folder, by which PEFT sees a resized vocabulary."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return cast(PreTrainedModel, model.eval())


def make(base: PreTrainedModel, folder: Path, kind: Kind, seed: int = 0, size: float = 1.0) -> None:
    """Saves an adapter of the kind in ``folder``. ``size`` scales how far everything is from the base.

    Raises PeftRefused where PEFT does not make it.
    """
    torch.manual_seed(seed)
    with quiet():
        model = _resized(base, kind.vocabulary)
        values = {"task_type": "CAUSAL_LM", **kind.config}
        try:
            tuned = get_peft_model(model, IA3Config(**values) if kind.ia3 else LoraConfig(**values))
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            raise PeftRefused(f"{type(error).__name__}: {error}") from error
        if kind.converted:
            _save_converted(tuned, folder, size)
        else:
            randomise(tuned, size)
            _save(tuned, folder)
    tensors = load_file(folder / SINGLE)
    if kind.dtype != "float32":
        save_file(
            {name: value.to(_DTYPES[kind.dtype]) for name, value in tensors.items()}, folder / SINGLE, {"format": "pt"}
        )
    if kind.edits:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **kind.edits}))
    if kind.tokenizer:
        _write_tokenizer(Path(str(base.name_or_path)), folder, kind.vocabulary or base.config.vocab_size)
    if kind.shards > 1:
        shard(folder, kind.shards, kind.index)


def _save(tuned: PeftModel, folder: Path, **options: Any) -> None:
    """PEFT's save_pretrained, but for the words of its README.md: making those takes half the time."""

    def readme(output: str) -> None:
        (Path(output) / "README.md").write_text("---\nlibrary_name: peft\n---\n")

    tuned.create_or_update_model_card = readme  # type: ignore[method-assign,assignment]  # words only
    tuned.save_pretrained(str(folder), **options)


def _save_converted(tuned: PeftModel, folder: Path, size: float) -> None:
    """PEFT's own recipe: the untrained adapter is saved first, and the trained one relative to it."""
    config = cast(LoraConfig, tuned.peft_config["default"])
    initialiser, config.init_lora_weights = config.init_lora_weights, True
    first = folder.parent / f"{folder.name}-first"
    _save(tuned, first)
    config.init_lora_weights = initialiser
    randomise(tuned, size)
    _save(tuned, folder, path_initial_model_for_weight_conversion=str(first))


def randomise(tuned: PeftModel, size: float = 1.0) -> None:
    """Everything that PEFT would train: as far from what it was as training might bring it."""
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(_random(name, parameter, size))


def _random(name: str, was: torch.Tensor, size: float) -> torch.Tensor:
    noise = torch.randn_like(was)
    if "lora_embedding_A" in name:
        return noise
    if "lora_embedding_B" in name:
        return noise * (0.03 * size / math.sqrt(was.shape[1]))
    if "lora_magnitude_vector" in name or "ia3_l" in name or "norm" in name:
        return was * (1 + 0.2 * size * noise)
    if name.endswith(".bias"):
        return was + 0.1 * size * noise
    if "lora_" in name:
        return noise * (0.3 * size / math.sqrt(was.shape[1]))
    return was + 0.5 * size * float(was.std()) * noise  # whole matrices and rows


def shard(folder: Path, shards: int, index_name: str = INDEX) -> None:
    """Splits the one file as transformers would; the whole one stays in ``whole/`` beside the folder, for PEFT, which
    reads no shards."""
    tensors = load_file(folder / SINGLE)
    whole = _whole(folder)
    whole.mkdir(exist_ok=True)
    (whole / "adapter_config.json").write_bytes((folder / "adapter_config.json").read_bytes())
    (folder / SINGLE).rename(whole / SINGLE)
    names = sorted(tensors)
    shards = min(shards, len(names))
    parts = {f"adapter_model-{i + 1:05d}-of-{shards:05d}.safetensors": names[i::shards] for i in range(shards)}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, folder / file, {"format": "pt"})
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
        "weight_map": {name: file for file, part in parts.items() for name in part},
    }
    (folder / index_name).write_text(json.dumps(index, indent=2, sort_keys=True))


def _whole(folder: Path) -> Path:
    return folder.parent / f"{folder.name}-whole"


def _resized(base: PreTrainedModel, vocabulary: int | None) -> PreTrainedModel:
    model: PreTrainedModel = copy.deepcopy(base)
    if vocabulary is not None:
        model.resize_token_embeddings(vocabulary, mean_resizing=False)
    return model


def _write_tokenizer(base: Path, folder: Path, vocabulary: int) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(base / "tokenizer.json"))
    have = tokenizer.get_vocab_size()
    tokenizer.add_tokens([f"<new{i}>" for i in range(vocabulary - have)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_bytes((base / "tokenizer_config.json").read_bytes())


class Truth:
    """PEFT's float32 logits on a base, adapter by adapter."""

    def __init__(self, base: PreTrainedModel) -> None:
        self._base = base

    def model(self, folder: Path | None, vocabulary: int | None = None) -> Any:
        """The base for None, else the adapter in the folder, read by PEFT onto a fresh copy of the base, resized first
        where the adapter brings a larger vocabulary. Raises PeftRefused where PEFT cannot read it."""
        with quiet():
            model = _resized(self._base, vocabulary)
            if folder is None:
                return model
            readable = folder if (folder / SINGLE).exists() else _whole(folder)
            try:
                return PeftModel.from_pretrained(model, str(readable)).eval()
            except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
                raise PeftRefused(f"{type(error).__name__}: {error}") from error

    def logits(self, folder: Path | None, ids: Sequence[int], vocabulary: int | None = None) -> torch.Tensor:
        """``[len(ids), V]``. Raises PeftRefused where PEFT cannot run it."""
        return logits_of(self.model(folder, vocabulary), ids)


def logits_of(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """``[len(ids), V]`` of a model. Raises PeftRefused where PEFT cannot run it."""
    with torch.inference_mode(), quiet():
        try:
            logits: torch.Tensor = model(torch.tensor([list(ids)])).logits[0]
        except (AttributeError, RuntimeError, ValueError) as error:
            raise PeftRefused(f"{type(error).__name__}: {error}") from error
    return logits


def peft_version() -> str:
    return str(peft.__version__)


__all__ = [
    "INDEX",
    "SINGLE",
    "Dtype",
    "Kind",
    "PeftRefused",
    "Truth",
    "load_base",
    "logits_of",
    "make",
    "peft_version",
    "quiet",
    "randomise",
    "shard",
]
