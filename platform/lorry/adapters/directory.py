"""Which files an adapter version may hold. No torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from lorry.adapters.header import PICKLE_SUFFIXES, show
from lorry.adapters.report import Check
from lorry.adapters.shards import INDEX_NAMES, WEIGHTS_NAME, index_of, is_shard
from lorry.text import TEXT_FILES

HARMLESS = frozenset(
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
COMPANIONS = frozenset(
    {
        "added_tokens.json",
        "merges.txt",
        "special_tokens_map.json",
        "spiece.model",
        "tokenizer.model",
        "vocab.json",
        "vocab.txt",
    }
)
"""Written beside tokenizer.json, and saying nothing that it does not say."""
TOKENIZER = "tokenizer.json"
_WEIGHTS = (".safetensors", ".gguf", ".npz", ".npy", ".h5", ".msgpack", ".onnx")


def check_files(path: Path, max_files: int, config: str) -> Iterator[Check]:
    """One row for each entry that must not be there and each required file that is not; else one that passes.

    The files of a version: ``config``, the weights in one file or in shards, its text side, and such as say nothing of
    the maths.
    """
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
    names = {entry.name for entry in entries}
    index = index_of(names)
    required = (config, WEIGHTS_NAME if index is None else index)
    for entry in entries:
        wrong = _wrong(entry, required, names)
        if wrong is not None:
            good = False
            yield Check.fail(f"files.{entry.name[:64]}", f"{show(entry.name)}: {wrong}", entry.name)
    for name in required:
        if name not in names:
            good = False
            yield Check.fail(f"files.{name}", f"{name}: absent; save the adapter with PEFT's save_pretrained", None)
    if good:
        yield Check("files", "pass", f"{len(entries)} files", len(entries), max_files)


def _wrong(entry: os.DirEntry[str], required: tuple[str, str], names: set[str]) -> str | None:
    name = entry.name.lower()
    if entry.is_symlink():
        return "a symbolic link; upload the file itself"
    if not entry.is_file(follow_symlinks=False):
        return "a folder or special file; an adapter version is plain files in one folder"
    if entry.name in required or entry.name in TEXT_FILES or name in HARMLESS:
        return None
    if is_shard(entry.name) and required[1] != WEIGHTS_NAME:
        return None
    if name.endswith(PICKLE_SUFFIXES):
        return "a pickle can run code when it is read and is never opened; save safetensors and remove it"
    if entry.name in COMPANIONS:
        return None if TOKENIZER in names else f"says nothing without {TOKENIZER}; save that too, or remove it"
    if name == "config.json":
        return "settings of a base model are not served with an adapter; remove it if it equals the base's"
    if name == "chat_template.json":
        return "a processor's template is not read; save it as chat_template.jinja, or remove it"
    if name.endswith(_WEIGHTS) or entry.name in INDEX_NAMES:
        return f"weights that would not be applied; keep {required[1]} and what it names"
    return "not a file of an adapter; remove it"


__all__ = ["COMPANIONS", "HARMLESS", "TOKENIZER", "check_files"]
