"""Versions' text files: from the store, hashed, once however many ask, and gone when they are not used."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lorry.adapters.manifest import AdapterRef, files_digest, scan_directory
from lorry.adapters.store import DirectoryStore
from lorry.errors import AdapterDigestMismatch, AdapterLoadFailed, AdapterObjectMissing, InvalidRequest
from lorry.gateway import texts as module
from lorry.gateway.texts import VersionTexts
from lorry.ids import AdapterScope
from lorry.text import Tokenizer
from lorry.text.files import LIMITS
from lorry.text.worker import VersionText
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


def put(
    store: CountingStore, base: Path, folder: Path, template: str, weights: str = "w", scope: str = "a_own"
) -> tuple[str, AdapterRef]:
    """(tokenizer digest, where the version lies)."""
    folder.mkdir(exist_ok=True)
    (folder / "chat_template.jinja").write_text(template)
    (folder / "adapter_model.safetensors").write_text(weights)
    files = scan_directory(folder)
    digest = files_digest(files)
    for file in files:
        store.put_file_sync(f"adapters/{digest}/{file.path}", folder / file.path)
    return Tokenizer.load(base, folder).sha256, AdapterRef(digest, f"adapters/{digest}", files, AdapterScope(scope))


async def chat(texts: VersionTexts, sha256: str, ref: AdapterRef, base: Path, tenant: str = "") -> tuple[int, ...]:
    async with texts.open(sha256, ref, base, tenant) as text:
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
    theirs = put(store, base, tmp_path / "w", "lorry", "other weights", scope="a_theirs")
    assert theirs[0] == sha256
    assert await chat(texts, *theirs, base) == answers[0]
    assert len(store.fetched) == 2, "another adapter's is fetched, whoever has an equal one"


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


async def test_a_purged_adapters_files_go_with_the_last_request_that_uses_them(
    texts: VersionTexts, store: CountingStore, base: Path, tmp_path: Path
) -> None:
    sha256, ref = put(store, base, tmp_path / "v", "lorry")
    theirs = put(store, base, tmp_path / "w", "lorry", scope="a_theirs")
    await chat(texts, *theirs, base)
    async with texts.open(sha256, ref, base):
        await texts.forget(ref.scope)
        assert len(list((tmp_path / "texts").iterdir())) == 2, "it is in use"
    assert len(list((tmp_path / "texts").iterdir())) == 1
    await texts.forget(ref.scope)
    fetched = len(store.fetched)
    await chat(texts, *theirs, base)
    assert len(store.fetched) == fetched, "another adapter's equal text stays"


async def test_a_fetch_that_fails_leaves_no_file(
    texts: VersionTexts, store: CountingStore, base: Path, tmp_path: Path
) -> None:
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "tokenizer_config.json").write_text("{}")
    sha256, ref = put(store, base, tmp_path / "v", "lorry")
    (tmp_path / "store" / ref.prefix / "tokenizer_config.json").unlink()
    with pytest.raises(AdapterObjectMissing):
        await chat(texts, sha256, ref, base)
    assert store.fetched[0].endswith("chat_template.jinja"), "one file had come"
    assert list((tmp_path / "texts").iterdir()) == []


async def test_equal_text_on_another_base_is_of_other_files(
    texts: VersionTexts, store: CountingStore, base: Path, tmp_path: Path
) -> None:
    """Each version's files make the same over its own base, and not over the other's."""
    other = bases.write_base(tmp_path / "other", bases.byte_level(), {"bos_token": "<|end|>"})
    one = put(store, base, tmp_path / "v", "lorry")
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "tokenizer_config.json").write_bytes((base / "tokenizer_config.json").read_bytes())
    two = put(store, other, tmp_path / "w", "lorry")
    assert one[0] == two[0]
    assert await chat(texts, *one, base) == await chat(texts, *two, other)


async def test_a_tenant_has_one_worker_at_a_time(
    texts: VersionTexts, store: CountingStore, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, running = threading.Event(), list[str]()

    def held(text: VersionText, prompt: str) -> tuple[int, ...]:
        running.append(prompt)
        assert text.tenant == "another" or go.wait(20)
        return (1,)

    monkeypatch.setattr(texts._workers, "encode", held)
    version = put(store, base, tmp_path / "v", "lorry")

    async def encode(prompt: str, tenant: str) -> tuple[int, ...]:
        async with texts.open(*version, base, tenant) as text:
            return await text.encode(prompt)

    asked = [asyncio.create_task(encode(f"{i}", "greedy")) for i in range(4)]
    async with asyncio.timeout(20):
        while not running:
            await asyncio.sleep(0.001)
        asked[0].cancel()
        assert await encode("x", "another") == (1,), "a worker is left for others"
        assert running == ["0", "x"], "what was cancelled runs on, and keeps its turn"
        go.set()
        assert await asyncio.gather(*asked[1:]) == [(1,)] * 3
        with pytest.raises(asyncio.CancelledError):
            await asked[0]


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
        await chat(texts, *fine, base, "another")
        turns += 1
    assert turns > 1, "others are served meanwhile"
    with pytest.raises(InvalidRequest, match="chat"):
        await asked
