"""The process in which the text sides of versions run: ``python -m lorry.text.child MEMORY_BYTES``.

It does one thing at a time, asked on standard input and answered on standard output (``lorry.text.frames``). The kernel
ends it at the limits that hold whatever a template or a tokenizer does, be it inside one C call: an alarm without a
handler for the time, and RLIMIT_AS for the memory.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from lorry.errors import InvalidRequest, UnsupportedBase
from lorry.text.frames import pack, read_frame
from lorry.text.spelling import spell
from lorry.text.tokenizer import Tokenizer

_KEPT_BYTES = 256 << 20
"""Of the text sides that are kept loaded."""


class _Loaded:
    """Text sides by scope and digest; the least recently used go first."""

    def __init__(self) -> None:
        self._base: tuple[str, Tokenizer] | None = None
        self._own: OrderedDict[tuple[str, str], Tokenizer] = OrderedDict()

    def get(self, scope: str, sha256: str) -> Tokenizer | None:
        found = self._own.get((scope, sha256))
        if found is not None:
            self._own.move_to_end((scope, sha256))
        return found

    def load(self, scope: str, base_dir: str, folder: str) -> str:
        if self._base is None or self._base[0] != base_dir:
            self._base = (base_dir, Tokenizer.load(Path(base_dir)))
        found = self._base[1].with_overlay(Path(base_dir), Path(folder))
        self._own[scope, found.sha256] = found
        while len(self._own) > 1 and sum(one.nbytes for one in self._own.values()) > _KEPT_BYTES:
            self._own.popitem(last=False)
        return found.sha256


def _answer(loaded: _Loaded, asked: dict[str, Any]) -> dict[str, Any]:
    if asked["do"] == "load":
        return {"sha256": loaded.load(asked["scope"], asked["base_dir"], asked["folder"])}
    text = loaded.get(asked["scope"], asked["sha256"])
    if text is None:
        return {"unknown": True}
    made: Sequence[Any]
    if asked["do"] == "spell":
        made = [(one.name, None if one.data is None else one.data.hex()) for one in spell(text, asked["ids"])]
    elif asked["do"] == "render":
        made = text.render_chat(asked["messages"], asked["opens"])
    else:
        made = text.encode(asked["text"], asked["special"])
    return {"made": made} if len(made) <= asked["most"] else {"over": len(made)}


def answer(loaded: _Loaded, asked: dict[str, Any]) -> bytes:
    """What goes wrong is an answer too: nothing that a version brings ends the loop but its limits."""
    try:
        return pack(_answer(loaded, asked))
    except InvalidRequest as refused:
        if isinstance(refused, UnsupportedBase):
            return pack({"broken": refused.message})
        return pack({"refused": [[one.field, one.description] for one in refused.violations]})
    except MemoryError:
        return pack({"memory": True})
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the tokenizer's library is no Exception
        return pack({"failed": f"{type(error).__name__}: {error}"[:500]})


def serve(source: BinaryIO, target: BinaryIO, alarm: Callable[[float], None]) -> None:
    loaded = _Loaded()
    while (asked := read_frame(source)) is not None:
        alarm(asked["seconds"])
        made = answer(loaded, asked)
        alarm(0.0)
        target.write(made)
        target.flush()


def main() -> int:
    # What libraries print goes elsewhere than the answers.
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for limit, value in (
        (resource.RLIMIT_AS, int(sys.argv[1])),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        with contextlib.suppress(ValueError, OSError):  # a system without this limit, or with a lower one
            resource.setrlimit(limit, (value, value))

    def alarm(seconds: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)

    serve(sys.stdin.buffer, target, alarm)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

__all__ = ["answer", "main", "serve"]
