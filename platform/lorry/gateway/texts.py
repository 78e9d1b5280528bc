"""The text side that serves a request: the base's, or the version's own, whose files come from the object store."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

from lorry.adapters.manifest import AdapterRef
from lorry.errors import AdapterLoadFailed, LorryError, NotServedYet
from lorry.ids import AdapterDigest, AdapterScope
from lorry.registry.snapshot import Resolution
from lorry.text import TEXT_FILES, Spelling, Tokenizer, spell
from lorry.text.files import LIMITS
from lorry.text.worker import TextLimits, TextWorkers, VersionText

_T = TypeVar("_T")
_Key = tuple[AdapterScope, str, Path]
Messages = Sequence[Mapping[str, str]]


class TextStore(Protocol):
    """The part of ``lorry.adapters.store.ObjectStore`` that is needed here."""

    async def fetch_to(self, key: str, path: Path, expected_size: int, expected_sha256: str) -> None:
        """Raises AdapterObjectMissing, AdapterDigestMismatch, ObjectStoreUnavailable; then ``path`` is not there."""


class TextSide(Protocol):
    """What makes ids of a request's text, and texts of ids, off the event loop. Raises InvalidRequest where it
    cannot."""

    async def encode(self, prompt: str) -> tuple[int, ...]: ...

    async def encode_chat(self, messages: Messages, add_generation_prompt: bool) -> tuple[int, ...]: ...

    async def spell(self, ids: Sequence[int]) -> tuple[Spelling, ...]: ...


@dataclass(frozen=True, slots=True)
class BaseText:
    """The base's own, which the operator put there."""

    tokenizer: Tokenizer
    pool: Executor

    async def encode(self, prompt: str) -> tuple[int, ...]:
        return await self._run(lambda: tuple(self.tokenizer.encode(prompt, add_special=True)))

    async def encode_chat(self, messages: Messages, add_generation_prompt: bool) -> tuple[int, ...]:
        def encode() -> tuple[int, ...]:
            text = self.tokenizer.render_chat(messages, add_generation_prompt)
            return tuple(self.tokenizer.encode(text, add_special=False))

        return await self._run(encode)

    async def spell(self, ids: Sequence[int]) -> tuple[Spelling, ...]:
        return await self._run(lambda: tuple(spell(self.tokenizer, ids)))

    async def _run(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)


@dataclass(frozen=True, slots=True)
class OwnText:
    """A version's, which a tenant wrote: it runs under limits, in a process of its own, on threads of its own."""

    text: VersionText
    workers: TextWorkers
    pool: Executor
    turn: asyncio.Lock
    """The tenant's: one of its texts is made at a time, so that it cannot have all workers and others wait behind
    all that it asks for."""

    async def encode(self, prompt: str) -> tuple[int, ...]:
        return await self._run(partial(self.workers.encode, self.text, prompt))

    async def encode_chat(self, messages: Messages, add_generation_prompt: bool) -> tuple[int, ...]:
        return await self._run(partial(self.workers.encode_chat, self.text, messages, add_generation_prompt))

    async def spell(self, ids: Sequence[int]) -> tuple[Spelling, ...]:
        return await self._run(partial(self.workers.spell, self.text, ids))

    async def _run(self, work: Callable[[], _T]) -> _T:
        async with self.turn:
            begun = self.pool.submit(work)
            ended = asyncio.wrap_future(begun)
            try:
                return await asyncio.shield(ended)
            except asyncio.CancelledError:
                if not begun.cancel():  # it runs: the turn and the files are its until it has ended
                    await asyncio.wait([ended])
                    ended.exception()  # it was asked for
                raise


class _Folder:
    """One text side's files: on their way, or there. ``users`` keep it from being evicted."""

    __slots__ = ("fetch", "nbytes", "of", "path", "unwanted", "users")

    def __init__(self, of: AdapterDigest, path: Path, nbytes: int) -> None:
        self.of = of
        self.path = path
        self.nbytes = nbytes
        self.users = 0
        self.unwanted = False
        self.fetch: asyncio.Task[None]


class VersionTexts:
    """Text files of versions by adapter, tokenizer digest and base, over whose files they are laid, on disk while they
    are used; the least recently used go first. Equal files of another adapter are fetched and loaded again, since how
    long a request's text takes is seen by who sends it.

    Every file is hashed against the version's manifest as it arrives, and the digest of the whole when it is loaded.
    One fetch for a digest at a time; what fails is fetched anew by the next request. Belongs to one event loop.
    """

    def __init__(
        self,
        store: TextStore,
        folder: Path,
        *,
        budget_bytes: int = 256 << 20,
        limits: TextLimits | None = None,
    ) -> None:
        """``folder`` is this object's alone and is emptied."""
        self._store = store
        self._root = folder
        self._budget = budget_bytes
        self._workers = TextWorkers(_WORKERS, limits)
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="version-text")
        self._folders: OrderedDict[_Key, _Folder] = OrderedDict()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._count = itertools.count()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    @asynccontextmanager
    async def open(self, sha256: str, ref: AdapterRef, base_dir: Path, tenant: str = "") -> AsyncIterator[TextSide]:
        """For ``tenant``'s request. Raises AdapterObjectMissing, AdapterDigestMismatch, ObjectStoreUnavailable, or
        AdapterLoadFailed for a file that is larger than any that was accepted."""
        found = await self._fetched((ref.scope, sha256, base_dir), ref)
        turn = self._turns.setdefault(tenant, asyncio.Lock())
        try:
            yield OwnText(VersionText(sha256, base_dir, found.path, ref.scope, tenant), self._workers, self._pool, turn)
        finally:
            found.users -= 1
            await self._evict()

    async def forget(self, scope: AdapterScope) -> None:
        """The adapter's files go: now, or with the last request that uses them."""
        for key, found in self._folders.items():
            found.unwanted |= key[0] == scope
        await self._evict()

    async def close(self) -> None:
        """Ends fetches and processes. Requests that still wait fail."""
        fetches = [found.fetch for found in self._folders.values()]
        for fetch in fetches:
            fetch.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)
        await asyncio.to_thread(self._pool.shutdown, wait=True, cancel_futures=True)
        await asyncio.to_thread(self._workers.close)
        await asyncio.to_thread(shutil.rmtree, self._root, ignore_errors=True)

    async def _fetched(self, key: _Key, ref: AdapterRef) -> _Folder:
        """With this request among its users."""
        while True:
            found = self._folders.get(key) or self._start(key, ref)
            self._folders.move_to_end(key)
            found.users += 1
            try:
                await asyncio.shield(found.fetch)
            except BaseException as error:  # whoever leaves, however, is no longer a user
                found.users -= 1
                if isinstance(error, LorryError) and found.of != ref.digest:
                    continue  # another version's objects with the same text are no fault of this one
                raise
            return found

    def _start(self, key: _Key, ref: AdapterRef) -> _Folder:
        nbytes = sum(file.size for file in ref.files if file.path in TEXT_FILES)
        found = self._folders[key] = _Folder(ref.digest, self._root / f"{key[1]}-{next(self._count)}", nbytes)
        found.fetch = asyncio.create_task(self._fetch(ref, found.path))
        found.fetch.add_done_callback(partial(self._note_end, key, found))
        return found

    async def _fetch(self, ref: AdapterRef, path: Path) -> None:
        try:
            await self._fetch_into(ref, path)
        except BaseException:  # nobody reads half of them
            await asyncio.to_thread(_remove, [path])
            raise

    async def _fetch_into(self, ref: AdapterRef, path: Path) -> None:
        await asyncio.to_thread(path.mkdir)
        for file in ref.files:
            if file.path not in TEXT_FILES:
                continue
            if file.size > LIMITS[file.path]:
                raise AdapterLoadFailed(
                    f"adapter {ref.digest}: {file.path} has {file.size} bytes, over {LIMITS[file.path]}; register it "
                    "anew with a smaller one",
                    metadata={"adapter": ref.digest},
                )
            await self._store.fetch_to(f"{ref.prefix}/{file.path}", path / file.path, file.size, file.sha256)

    def _note_end(self, key: _Key, found: _Folder, fetch: asyncio.Task[None]) -> None:
        failed = fetch.cancelled() or fetch.exception() is not None
        if failed and self._folders.get(key) is found:
            del self._folders[key]

    async def _evict(self) -> None:
        held = sum(found.nbytes for found in self._folders.values())
        gone: list[Path] = []
        for key, found in list(self._folders.items()):
            over = held > self._budget or len(self._folders) > _FOLDERS_MAX
            if (over or found.unwanted) and not found.users and found.fetch.done():
                del self._folders[key]
                held -= found.nbytes
                gone.append(found.path)
        if gone:
            await asyncio.to_thread(_remove, gone)  # all in one: a caller that is cancelled leaves none of them


def _remove(folders: Sequence[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


_WORKERS = 2
_FOLDERS_MAX = 1024


@asynccontextmanager
async def text_of(
    resolution: Resolution,
    tokenizer: Tokenizer,
    base_dir: Path,
    pool: Executor,
    texts: VersionTexts | None,
    tenant: str,
) -> AsyncIterator[TextSide]:
    """The text side that a name resolved to. ``texts`` None: this gateway serves none but the base's."""
    text, ref = resolution.text, resolution.ref
    if text is None or ref is None or text.sha256 == resolution.base.tokenizer_sha256:
        yield BaseText(tokenizer, pool)
    elif texts is None:
        raise NotServedYet("model: this version brings its own tokenizer or template, and this gateway serves none")
    else:
        async with texts.open(text.sha256, ref, base_dir, tenant) as own:
            yield own


__all__ = ["BaseText", "OwnText", "TextSide", "TextStore", "VersionTexts", "text_of"]
