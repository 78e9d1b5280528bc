"""Versions' text files: from the store, hashed, once however many ask, and gone when they are not used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lorry.adapters.manifest import AdapterRef, files_digest, scan_directory
from lorry.adapters.store import DirectoryStore
from lorry.errors import AdapterDigestMismatch, AdapterLoadFailed, AdapterObjectMissing, InvalidRequest
from lorry.gateway import texts as module
from lorry.gateway.texts import VersionTexts
from lorry.text import Tokenizer
from lorry.text.files import LIMITS
from tests.unit.text import bases

MESSAGES = [{"role": "user", "content": "Hi"}]


class CountingStore(DirectoryStore):
    """Counts fetches by key, and holds them while ``gate`` is not set."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.fetched: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def fetch_to(self, key: str, path: Path, expected_size: int, expected_sha256: str) -> None:
        self.fetched.append(key)
        await self.gate.wait()
        await super().fetch_to(key, path, expected_size, expected_sha256)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return bases.write_base(tmp_path / "base", bases.byte_level())


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    return CountingStore(tmp_path / "store")


@pytest.fixture
async def texts(tmp_path: Path, store: CountingStore) -> AsyncIterator[VersionTexts]:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "left-by-the-process-before").write_text("x")
    made = VersionTexts(store, tmp_path / "texts")
    yield made
    await made.close()
    assert not (tmp_path / "texts").exists()


def put(store: CountingStore, base: Path, folder: Path, template: str, weights: str = "w") -> tuple[str, AdapterRef]:
    """(tokenizer digest, where the version lies)."""
    folder.mkdir()
    (folder / "chat_template.jinja").write_text(template)
    (folder / "adapter_model.safetensors").write_text(weights)
    files = scan_directory(folder)
    digest = files_digest(files)
    for file in files:
        store.put_file_sync(f"adapters/{digest}/{file.path}", folder / file.path)
    return Tokenizer.load(base, folder).sha256, AdapterRef(digest, f"adapters/{digest}", files)


async def chat(texts: VersionTexts, sha256: str, ref: AdapterRef, base: Path) -> tuple[int, ...]:
    async with texts.open(sha256, ref, base) as text:
        return await text.encode_chat(MESSAGES, True)


async def test_one_fetch_for_all_who_ask_and_of_text_files_alone(
    texts: VersionTexts, store: CountingStore, base: Path, tmp_path: Path
) -> None:
    sha256, ref = put(store, base, tmp_path / "v", "lorry")
    store.gate.clear()
    asked = [asyncio.create_task(chat(texts, sha256, ref, base)) for _ in range(5)]
    while not store.fetched:
        await asyncio.sleep(0)
    asked[0].cancel()
    store.gate.set()
    answers = await asyncio.gather(*asked[1:])
    assert set(answers) == {tuple(Tokenizer.load(base).encode("lorry", False))}
    assert store.fetched == [f"{ref.prefix}/chat_template.jinja"]
    other = put(store, base, tmp_path / "w", "lorry", "other weights")
    assert other[0] == sha256
    assert await chat(texts, *other, base) == answers[0]
    assert len(store.fetched) == 1, "equal text is there already"


async def test_what_fails_is_the_versions_own_fault_and_is_tried_again(
    texts: VersionTexts, store: CountingStore, base: Path, tmp_path: Path
) -> None:
    sha256, ref = put(store, base, tmp_path / "v", "lorry")
    _, twin = put(store, base, tmp_path / "w", "lorry", "other weights")
    stored = tmp_path / "store" / ref.prefix / "chat_template.jinja"
    stored.write_text("lorrx")
    with pytest.raises(AdapterDigestMismatch):
        await chat(texts, sha256, ref, base)
    stored.unlink()
    store.gate.clear()
    asked = asyncio.create_task(chat(texts, sha256, ref, base))
    while len(store.fetched) < 2:
        await asyncio.sleep(0)
    beside = asyncio.create_task(chat(texts, sha256, twin, base))
    await asyncio.sleep(0)
    store.gate.set()
    with pytest.raises(AdapterObjectMissing):
        await asked
    assert await beside == tuple(Tokenizer.load(base).encode("lorry", False)), "its own objects are there"


async def test_files_over_the_limit_are_not_fetched(
    texts: VersionTexts, store: CountingStore, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256, ref = put(store, base, tmp_path / "v", "lorry")
    monkeypatch.setattr(module, "LIMITS", dict.fromkeys(LIMITS, 4))
    with pytest.raises(AdapterLoadFailed, match=r"chat_template\.jinja has 5 bytes, over 4"):
        await chat(texts, sha256, ref, base)
    assert store.fetched == []


async def test_the_least_recently_used_go_but_never_those_in_use(
    store: CountingStore, base: Path, tmp_path: Path
) -> None:
    root = tmp_path / "texts"
    texts = VersionTexts(store, root, budget_bytes=12)
    made = [put(store, base, tmp_path / str(i), f"text{i}") for i in range(4)]
    async with texts.open(*made[0], base) as first:
        for one in made[1:]:
            await chat(texts, *one, base)
        kept = {path.name[:64] for path in root.iterdir()}
        assert kept == {made[0][0], made[3][0]}, "two of five bytes fit, one of them is in use"
        assert await first.encode_chat(MESSAGES, True) == tuple(Tokenizer.load(base).encode("text0", False))
    fetched = len(store.fetched)
    await chat(texts, *made[1], base)
    assert len(store.fetched) == fetched + 1
    await texts.close()


async def test_a_version_that_misbehaves_does_not_hold_up_the_loop(
    texts: VersionTexts, store: CountingStore, base: Path, tmp_path: Path
) -> None:
    slow = put(
        store, base, tmp_path / "v", "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    )
    fine = put(store, base, tmp_path / "w", "lorry")
    asked = asyncio.create_task(chat(texts, *slow, base))
    turns = 0
    while not asked.done():
        await chat(texts, *fine, base)
        turns += 1
    assert turns > 1, "others are served meanwhile"
    with pytest.raises(InvalidRequest, match="chat"):
        await asked
