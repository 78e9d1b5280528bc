"""Folders with too much, too little, or what is no file."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.unit.adapters.hostile.kinds import CONFIG_NAME, WEIGHTS_NAME, Kind, Spoil, sparse, text

NEEDED = (CONFIG_NAME, WEIGHTS_NAME)
_ONE = r"files\..+"


def one_of(make: Callable[[Path, Random], object], *names: str) -> Spoil:
    """``make`` is given the path of one of the names, at which nothing is left."""

    def spoil(folder: Path, draw: Random) -> None:
        path = folder / draw.choice(names)
        path.unlink(missing_ok=True)
        make(path, draw)

    return spoil


def linked(*targets: str) -> Spoil:
    """A needed file is a symbolic link; one to the file itself stands for a good file elsewhere."""

    def spoil(folder: Path, draw: Random) -> None:
        path = folder / draw.choice(NEEDED)
        target = draw.choice(targets)
        if target == "good":
            target = str(path.rename(folder.parent / f"{folder.name} {path.name}"))
        path.unlink(missing_ok=True)
        path.symlink_to(path.name if target == "loop" else target)

    return spoil


def _socket(path: Path, draw: Random) -> None:
    """Bound by a short relative path: the length of a socket's is bounded."""
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)


def _hard_link_to_fifo(path: Path, draw: Random) -> None:
    os.mkfifo(path.parent / "pipe")
    os.link(path.parent / "pipe", path)


def _crowd(folder: Path, draw: Random) -> None:
    for index in range(draw.choice((31, 60, 3000))):
        (folder / f"README{index}.md").touch()


def _odd_name(folder: Path, draw: Random) -> None:
    name = draw.choice((b"a\nb", b"\x1b[2J", b"\xff\xfe", "\u202ejson".encode(), b"x" * 255, b" ", b"-rf", b"<script>"))
    (folder / os.fsdecode(name)).touch()


def _capitals(folder: Path, draw: Random) -> None:
    name = draw.choice(
        ("Adapter_Config.json", "ADAPTER_MODEL.SAFETENSORS", "adapter_model.SafeTensors", "TOKENIZER.JSON")
    )
    shutil.copy(folder / draw.choice(NEEDED), folder / name)


def _swapped_folder(folder: Path, draw: Random) -> None:
    """The folder itself is a link, or a file."""
    moved = folder.rename(folder.parent / f"{folder.name} moved")
    if draw.random() < 0.5:
        folder.symlink_to(moved, target_is_directory=True)
    else:
        folder.write_bytes(b"{}")


def _emptied(folder: Path, draw: Random) -> None:
    for name in NEEDED:
        (folder / name).unlink()


FILES = (
    Kind("a link to a good file", _ONE, "a symbolic link", linked("good")),
    Kind("a link to a secret", _ONE, "a symbolic link", linked("/etc/passwd", "/etc/shadow", "/proc/self/environ")),
    Kind("a link to an endless device", _ONE, "a symbolic link", linked("/dev/zero", "/dev/urandom", "/dev/tty")),
    Kind("a link to nothing", _ONE, "a symbolic link", linked("absent", "loop", "../absent", "x" * 4000)),
    Kind("a folder that is a link or a file", "files", "not a folder", _swapped_folder),
    Kind(
        "a pipe",
        _ONE,
        "special file",
        one_of(lambda path, draw: os.mkfifo(path), *NEEDED, "README.md", "tokenizer.json"),
    ),
    Kind("a pipe by a hard link", _ONE, "special file", one_of(_hard_link_to_fifo, *NEEDED)),
    Kind("a socket", _ONE, "special file", one_of(_socket, *NEEDED, "README.md")),
    Kind(
        "a folder for a file",
        _ONE,
        "a folder or special file",
        one_of(lambda path, draw: path.mkdir(), *NEEDED, "tokenizer.json", "sub", "..a"),
    ),
    Kind("thousands of files", "files", "files, over 32", _crowd),
    Kind("nothing", _ONE, "absent", _emptied, 1),
    Kind("a needed file less", _ONE, "absent", lambda folder, draw: (folder / draw.choice(NEEDED)).unlink()),
    Kind("a folder that is not there", "files", "not a folder", lambda folder, draw: shutil.rmtree(folder), 1),
    Kind(
        "pickles beside",
        _ONE,
        "a pickle can run code",
        one_of(
            lambda path, draw: path.write_bytes(b"\x80\x04."),
            "adapter_model.bin",
            "optimizer.pt",
            "scheduler.PT",
            "rng_state.pth",
            "a.pkl",
            "x.ckpt",
        ),
        6,
    ),
    Kind(
        "programs beside",
        _ONE,
        "not a file of an adapter",
        one_of(
            lambda path, draw: path.write_text("import os"),
            "modeling_lora.py",
            "setup.py",
            "lib.so",
            "run.sh",
            "__init__.py",
            "a.pth.py",
            "conftest.py",
            ".env",
        ),
        6,
    ),
    Kind(
        "weights beside",
        _ONE,
        "would not be applied",
        one_of(
            lambda path, draw: path.write_bytes(b"{}"),
            "model.safetensors",
            "adapter_model.gguf",
            "adapter.npz",
            "adapter_model_2.safetensors",
            "adapter_model.safetensors.safetensors",
        ),
        4,
    ),
    Kind("names of other letters", _ONE, "would not be applied|not a file of an adapter|absent", _capitals, 4),
    Kind("names that are no names", _ONE, "not a file of an adapter", _odd_name, 6),
    Kind("a base's settings", _ONE, "settings of a base model", text("config.json", "{}", '{"model_type": "llama"}')),
    Kind("a sparse file beside", _ONE, "not a file of an adapter", sparse("data", 1 << 42), 1),
)

__all__ = ["FILES", "NEEDED"]
