"""Texts of versions made under limits: a template is a program that a tenant wrote, and so is a tokenizer's pattern.

Both run in a process of their own (``lorry.text.child``), which the kernel ends at its limits of time and memory and
which is started anew for the next request. A tenant whose request was ended over a text side is refused that text side
for a while without a try, so that one tenant cannot keep the workers busy; others, who may have an equal one, are not.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lorry.errors import AdapterLoadFailed, FieldViolation, InvalidRequest, ProvenanceMismatch, Unavailable
from lorry.text.frames import HEAD, pack
from lorry.text.spelling import Spelling

_BACKSTOP_S = 5.0
"""The child's own alarm comes first; beyond this it is killed from here."""
_BARRED_KEPT = 1024
_ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ", "VIRTUAL_ENV")
"""All that a template's process sees of this one's: no secret is among it."""


@dataclass(frozen=True, slots=True)
class TextLimits:
    """Of one step for one request. ``memory_bytes`` is address space, the interpreter's included."""

    load_s: float = 30.0
    render_s: float = 2.0
    encode_s: float = 10.0
    memory_bytes: int = 2 << 30
    rendered_chars: int = 4 << 20
    ids: int = 1 << 20
    barred_s: float = 30.0
    """For so long a text side that went over a limit is refused to its tenant without a try."""


@dataclass(frozen=True, slots=True)
class VersionText:
    """A version's own text side: ``folder`` has its files, over those of ``base_dir``; both lie still. ``scope`` is the
    adapter's, which is loaded for itself: how long that takes must not tell who else has an equal one. ``tenant``
    asks."""

    sha256: str
    base_dir: Path
    folder: Path
    scope: str = ""
    tenant: str = ""


class _Ended(Exception):
    """The child is gone. ``what`` it went over, for people; ``memory``: that was its memory."""

    def __init__(self, what: str, memory: bool) -> None:
        super().__init__(what)
        self.what = what
        self.memory = memory
        self.loading = False


class _Worker:
    """One child, started when it is needed. For one thread at a time."""

    def __init__(self, limits: TextLimits) -> None:
        self._limits = limits
        self._child: subprocess.Popen[bytes] | None = None
        self.loaded: set[tuple[str, str]] = set()
        """Text sides that this child has loaded: scope and digest."""

    def ask(self, asked: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Raises _Ended where the child did not answer, and Unavailable where there is none to ask."""
        child = self._started()
        assert child.stdin is not None
        try:
            child.stdin.write(pack({**asked, "seconds": seconds}))
            child.stdin.flush()
            found = self._read(child, time.monotonic() + seconds + _BACKSTOP_S)
        except (OSError, EOFError):
            raise self._ended(seconds) from None
        except BaseException:  # a cancelled caller too leaves an answer in the pipe: the child goes
            self.close()
            raise
        if "memory" in found:
            self.close()  # what it holds by now may be most of it
            raise _Ended(self._memory, memory=True)
        return found

    def close(self) -> int | None:
        """The child's exit status, negative for a signal; None where none ran."""
        child, self._child = self._child, None
        self.loaded.clear()
        if child is None:
            return None
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was not written is lost with the child
                    pipe.close()
        try:
            return child.wait(0.2)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()

    @property
    def _memory(self) -> str:
        return f"{self._limits.memory_bytes >> 20} MiB"

    def _ended(self, seconds: float) -> _Ended:
        if self.close() in (-signal.SIGALRM, -signal.SIGKILL):
            return _Ended(f"{seconds:g} s", memory=False)
        return _Ended(self._memory, memory=True)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._child.poll() is None:
            return self._child
        self.close()
        kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        kept |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "lorry.text.child", str(self._limits.memory_bytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=kept,
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(
                f"no process could be started for a version's own tokenizer ({error.strerror}); try again",
                retry_after_s=1.0,
            ) from error
        return self._child

    def _read(self, child: subprocess.Popen[bytes], deadline: float) -> dict[str, Any]:
        assert child.stdout is not None
        handle, found = child.stdout.fileno(), bytearray()
        waiting = select.poll()  # unlike select it takes any number of a descriptor, and a gateway has many
        waiting.register(handle, select.POLLIN)
        while len(found) < HEAD or len(found) < HEAD + int.from_bytes(found[:HEAD]):
            ready = waiting.poll(max(0.0, deadline - time.monotonic()) * 1000)
            block = os.read(handle, 1 << 20) if ready else b""
            if not block:
                if not ready:
                    child.kill()
                raise EOFError
            found += block
        answer: dict[str, Any] = json.loads(bytes(found[HEAD:]))
        return answer


class TextWorkers:
    """Blocking; safe from several threads, of which ``count`` get on at once."""

    def __init__(
        self, count: int = 1, limits: TextLimits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits or TextLimits()
        self._clock = clock
        self._all = [_Worker(self._limits) for _ in range(count)]
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._all:
            self._idle.put(worker)
        self._lock = threading.Lock()
        self._barred: OrderedDict[tuple[str, str], tuple[float, str]] = OrderedDict()

    def encode(self, text: VersionText, prompt: str) -> tuple[int, ...]:
        """Raises InvalidRequest (``prompt``) where the version's tokenizer fails over it or takes too much."""
        with self._worker() as worker:
            return self._encode(worker, text, "prompt", prompt, special=True)

    def encode_chat(
        self, text: VersionText, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool
    ) -> tuple[int, ...]:
        """Raises InvalidRequest (``chat``) where the version has no template, or its template or tokenizer refuses the
        messages, fails over them or takes too much."""
        asked = {"do": "render", "messages": [dict(one) for one in messages], "opens": add_generation_prompt}
        with self._worker() as worker:
            rendered = self._ask(
                worker, text, "chat", {**asked, "most": self._limits.rendered_chars}, self._limits.render_s
            )
            return self._encode(worker, text, "chat", rendered, special=False)

    def spell(self, text: VersionText, ids: Sequence[int]) -> tuple[Spelling, ...]:
        """See ``lorry.text.spelling``. Raises InvalidRequest (``logprobs``) where that takes too much."""
        with self._worker() as worker:
            asked = {"do": "spell", "ids": list(ids), "most": len(ids)}
            found = self._ask(worker, text, "logprobs", asked, self._limits.encode_s)
        return tuple(Spelling(name, None if data is None else bytes.fromhex(data)) for name, data in found)

    def close(self) -> None:
        """Ends the children. Call it when nothing is asked any more."""
        for worker in self._all:
            worker.close()

    def _encode(self, worker: _Worker, text: VersionText, field: str, prompt: str, *, special: bool) -> tuple[int, ...]:
        asked = {"do": "encode", "text": prompt, "special": special, "most": self._limits.ids}
        return tuple(self._ask(worker, text, field, asked, self._limits.encode_s))

    @contextlib.contextmanager
    def _worker(self) -> Iterator[_Worker]:
        worker = self._idle.get()
        try:
            yield worker
        finally:
            self._idle.put(worker)

    def _ask(self, worker: _Worker, text: VersionText, field: str, asked: dict[str, Any], seconds: float) -> Any:
        """What the version's text side makes of it."""
        self._refuse_barred(text, field)
        asked |= {"scope": text.scope, "sha256": text.sha256}
        try:
            found = self._answer(worker, text, asked, seconds)
        except _Ended as ended:
            self._bar(text, ended.what)
            if ended.loading:
                raise AdapterLoadFailed(
                    f"the version's own tokenizer takes more than {ended.what} to load; publish a smaller one"
                ) from None
            raise self._over(field, ended.what) from None
        if "made" in found:
            return found["made"]
        if "refused" in found:
            raise InvalidRequest(
                "; ".join(f"{name}: {what}" for name, what in found["refused"]),
                violations=[FieldViolation(name, what) for name, what in found["refused"]],
            )
        if "over" in found:
            raise InvalidRequest.field(field, f"it makes {found['over']} of at most {asked['most']}; shorten it")
        raise InvalidRequest.field(field, f"this version's own tokenizer or template fails: {_said(found)}")

    def _answer(self, worker: _Worker, text: VersionText, asked: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The text side is loaded first where the child does not have it. Raises _Ended; for memory only by a child
        that had no other text side: what those of others left behind is not held against this one."""
        while True:
            others = worker.loaded - {(text.scope, text.sha256)}
            try:
                found = worker.ask(asked, seconds)
                if "unknown" in found:
                    self._load(worker, text)
                    found = worker.ask(asked, seconds)
                return found
            except _Ended as ended:
                if not (ended.memory and others):
                    raise

    def _load(self, worker: _Worker, text: VersionText) -> None:
        asked = {"do": "load", "scope": text.scope, "base_dir": str(text.base_dir), "folder": str(text.folder)}
        try:
            found = worker.ask(asked, self._limits.load_s)
        except _Ended as ended:
            ended.loading = True
            raise
        worker.loaded.add((text.scope, text.sha256))
        if "sha256" not in found:
            raise AdapterLoadFailed(f"the version's own tokenizer cannot be loaded: {_said(found)}")
        if found["sha256"] != text.sha256:
            raise ProvenanceMismatch(
                f"tokenizer: the version is registered with {text.sha256}, its files over this base make "
                f"{found['sha256']}; register it anew",
                metadata={"field": "tokenizer", "want": text.sha256, "have": found["sha256"]},
            )

    def _refuse_barred(self, text: VersionText, field: str) -> None:
        with self._lock:
            until, what = self._barred.get((text.tenant, text.sha256), (0.0, ""))
        if self._clock() < until:
            raise self._over(field, what)

    def _bar(self, text: VersionText, what: str) -> None:
        with self._lock:
            self._barred[text.tenant, text.sha256] = (self._clock() + self._limits.barred_s, what)
            while len(self._barred) > _BARRED_KEPT:
                self._barred.popitem(last=False)

    def _over(self, field: str, what: str) -> InvalidRequest:
        return InvalidRequest.field(
            field,
            f"this version's own tokenizer or template took more than {what}; it is ended and refused for a while",
        )


def _said(found: Mapping[str, Any]) -> str:
    for name in ("broken", "failed"):
        if name in found:
            return str(found[name])
    return "it gave no reason"


__all__ = ["TextLimits", "TextWorkers", "VersionText"]
