"""Which files an adapter version may hold. No torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from lorry.adapters.header import PICKLE_SUFFIXES, show
from lorry.adapters.report import Check

_HARMLESS = frozenset(
    {
        ".gitattributes",
        "all_results.json",
        "eval_results.json",
        "license",
        "license.md",
        "license.txt",
        "notice",
        "readme.md",
        "train_results.json",
        "trainer_log.jsonl",
        "trainer_state.json",
    }
)
_TOKENIZER = frozenset(
    {
        "added_tokens.json",
        "chat_template.jinja",
        "chat_template.json",
        "merges.txt",
        "special_tokens_map.json",
        "spiece.model",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "vocab.json",
        "vocab.txt",
    }
)
_BASE_SETTINGS = frozenset({"config.json", "generation_config.json"})
_WEIGHTS = (".safetensors", ".gguf", ".npz", ".npy", ".h5", ".msgpack", ".onnx")


def check_files(path: Path, max_files: int, required: tuple[str, ...]) -> Iterator[Check]:
    """One row for each entry that must not be there and each required file that is not; else one that passes."""
    try:
        if path.is_symlink() or not path.is_dir():
            yield Check.fail("files", f"{path.name}: not a folder; give the folder of one adapter version")
            return
        with os.scandir(path) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
    except OSError as error:
        yield Check.fail("files", f"{path.name}: cannot be read ({error.strerror})")
        return
    if len(entries) > max_files:
        yield Check.fail("files", f"{len(entries)} files, over {max_files}; remove the rest", len(entries), max_files)
        return
    good = True
    for entry in entries:
        wrong = _wrong(entry, required)
        if wrong is not None:
            good = False
            yield Check.fail(f"files.{entry.name[:64]}", f"{show(entry.name)}: {wrong}", entry.name)
    names = {entry.name for entry in entries}
    for name in required:
        if name not in names:
            good = False
            yield Check.fail(f"files.{name}", f"{name}: absent; save the adapter with PEFT's save_pretrained", None)
    if good:
        yield Check("files", "pass", f"{len(entries)} files", len(entries), max_files)


def _wrong(entry: os.DirEntry[str], required: tuple[str, ...]) -> str | None:
    name = entry.name.lower()
    if entry.is_symlink():
        return "a symbolic link; upload the file itself"
    if not entry.is_file(follow_symlinks=False):
        return "a folder or special file; an adapter version is plain files in one folder"
    if entry.name in required or name in _HARMLESS:
        return None
    if name.endswith(PICKLE_SUFFIXES):
        return "a pickle can run code when it is read and is never opened; save safetensors and remove it"
    if name in _TOKENIZER:
        return "an adapter's own tokenizer or chat template is not served yet; remove it if it equals the base's"
    if name in _BASE_SETTINGS:
        return "settings of a base model are not served with an adapter; remove it if it equals the base's"
    if name.endswith(_WEIGHTS):
        return f"weights that would not be applied; keep {required[-1]} alone"
    return "not a file of an adapter; remove it"


__all__ = ["check_files"]
