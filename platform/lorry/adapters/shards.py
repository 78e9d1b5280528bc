"""An adapter's weights as one set of tensors: one file, or shards with an index as transformers writes. No torch."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from lorry.adapters.header import HeaderLimits, HeaderRefused, TensorFile, TensorInfo, read_bounded, show, strict_json

WEIGHTS_NAME = "adapter_model.safetensors"
INDEX_NAMES = ("adapter_model.safetensors.index.json", "model.safetensors.index.json")
"""The second is what transformers writes beside an adapter's shards."""
_LIMITS = HeaderLimits()
_SHARD_PREFIX, _SHARD_SUFFIX = "adapter_model-", ".safetensors"


class WeightFiles:
    """Open, checked weights files. Tensors are read by memory map; nothing is copied at opening.

    Use as a context manager. Arrays handed out stay valid after closing, but the files must not be truncated meanwhile.
    """

    def __init__(self, directory: Path, names: Sequence[str], limits: HeaderLimits = _LIMITS) -> None:
        """``names`` of files in ``directory``. ``limits`` hold for each file, and for all of them together.

        Raises HeaderRefused, also where two files have a tensor of one name.
        """
        self.names = tuple(names)
        self._file_of: dict[str, TensorFile] = {}
        found: dict[str, TensorInfo] = {}
        with ExitStack() as stack:
            size = 0
            for name in names:
                file = stack.enter_context(TensorFile(directory / name, limits))
                twice = next((tensor for tensor in file.tensors if tensor in found), None)
                if twice is not None:
                    raise HeaderRefused("shards", f"{name}: the tensor {show(twice)} is in another shard too", twice)
                found |= file.tensors
                self._file_of |= dict.fromkeys(file.tensors, file)
                size += (directory / name).stat().st_size
                if len(found) > limits.tensors:
                    raise HeaderRefused(
                        "shards", f"{len(found)} tensors, over {limits.tensors}", len(found), limits.tensors
                    )
                if size > limits.file_bytes:
                    raise HeaderRefused("shards", f"{size} bytes, over {limits.file_bytes}", size, limits.file_bytes)
            self._stack = stack.pop_all()
        self.tensors: Mapping[str, TensorInfo] = found

    def __enter__(self) -> WeightFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        self._stack.close()

    def file_of(self, name: str) -> str:
        """The name of the file that holds the tensor."""
        return self._file_of[name].path.name

    def stored(self, name: str) -> npt.NDArray[Any]:
        """See ``TensorFile.stored``."""
        return self._file_of[name].stored(name)

    def read_tensor(self, name: str) -> npt.NDArray[np.float32]:
        """See ``TensorFile.read_tensor``."""
        return self._file_of[name].read_tensor(name)

    def largest_magnitude(self, name: str) -> float:
        """See ``TensorFile.largest_magnitude``."""
        return self._file_of[name].largest_magnitude(name)


def open_weights(directory: Path, limits: HeaderLimits = _LIMITS) -> WeightFiles:
    """The weights of an adapter's folder: the shards that the index names, which must be where it says, each tensor
    once and none beside; else the one file. Raises HeaderRefused."""
    beside = os.listdir(directory) if directory.is_dir() else []
    index = index_of(beside)
    if index is None:
        return WeightFiles(directory, (WEIGHTS_NAME,), limits)
    where = _read_index(directory / index, limits)
    stray = next((name for name in beside if is_shard(name) and name not in where.values()), None)
    if stray is not None:
        raise HeaderRefused("shards", f"{stray}: is not named by the index; remove it, or save again", stray)
    files = WeightFiles(directory, sorted(set(where.values())), limits)
    try:
        _check_index(index, files, where)
    except HeaderRefused:
        files.close()
        raise
    return files


def index_of(names: Collection[str]) -> str | None:
    """The index among a folder's file names; None: the weights are in one file."""
    return next((name for name in INDEX_NAMES if name in names), None)


def is_shard(name: str) -> bool:
    """Whether a file's name is that of a shard: ``adapter_model-00001-of-00002.safetensors``."""
    if not (name.startswith(_SHARD_PREFIX) and name.endswith(_SHARD_SUFFIX)):
        return False
    number, of, count = name[len(_SHARD_PREFIX) : -len(_SHARD_SUFFIX)].partition("-of-")
    return bool(of) and all(len(part) == 5 and part.isdecimal() and part.isascii() for part in (number, count))


def _read_index(path: Path, limits: HeaderLimits) -> dict[str, str]:
    try:
        found = strict_json(read_bounded(path, limits.header_bytes).decode("utf-8"), path.name)
    except UnicodeDecodeError as error:
        raise HeaderRefused(path.name, f"{path.name}: not UTF-8; save the adapter again") from error
    where = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(where, dict) or not where:
        raise HeaderRefused(path.name, f"{path.name}: weight_map must map tensors to files; save the adapter again")
    for file in where.values():
        if not isinstance(file, str) or not is_shard(file):
            raise HeaderRefused(
                path.name, f"{path.name}: weight_map names {show(file)}; only shards beside it are read", show(file)
            )
    return where


def _check_index(index: str, files: WeightFiles, where: Mapping[str, str]) -> None:
    for name, file in where.items():
        if name not in files.tensors or files.file_of(name) != file:
            have = "nowhere" if name not in files.tensors else f"in {files.file_of(name)}"
            raise HeaderRefused(
                index, f"{index}: says that {show(name)} is in {file}, and it is {have}; save it again", file
            )
    beside = next((name for name in files.tensors if name not in where), None)
    if beside is not None:
        raise HeaderRefused(index, f"{index}: leaves out {show(beside)}; save the adapter again", beside)


__all__ = ["INDEX_NAMES", "WEIGHTS_NAME", "WeightFiles", "index_of", "is_shard", "open_weights"]
