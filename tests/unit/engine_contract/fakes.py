"""A fake engine over a small trained tokenizer, with three adapters."""

from __future__ import annotations

import functools
import hashlib
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from lorry.adapters.manifest import AdapterFile, AdapterRef
from lorry.engine.contract import EngineClient, EngineInfo, EngineRequest
from lorry.engine.fake import FakeEngine, Fault
from lorry.engine.transport_client import GrpcEngineClient
from lorry.engine.transport_server import serve_engine
from lorry.ids import AdapterDigest, AdapterScope, BaseDigest
from lorry.text import Tokenizer
from tests.unit.engine_contract.bench import Bench
from tests.unit.text import bases

BASE_DIGEST = BaseDigest("b" * 64)
CONTEXT_TOKENS = 20_000


@functools.cache
def base_dir() -> Path:
    """A Hugging Face folder with a tokenizer and no weights; lives as long as the process."""
    folder = tempfile.TemporaryDirectory(prefix="lorry-test-base-")
    _keep.append(folder)
    return bases.write_base(Path(folder.name), bases.byte_level())


_keep: list[tempfile.TemporaryDirectory[str]] = []


@functools.cache
def tokenizer() -> Tokenizer:
    return Tokenizer.load(base_dir())


def adapter_ref(name: str) -> AdapterRef:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return AdapterRef(
        AdapterDigest(digest),
        f"adapters/{digest}",
        (AdapterFile("adapter_config.json", 1, digest),),
        AdapterScope(f"a_{name}"),
    )


ADAPTERS = tuple(adapter_ref(name) for name in ("one", "two", "three"))


def fake_engine(base: BaseDigest = BASE_DIGEST, replica: str = "engine-0") -> FakeEngine:
    text = tokenizer()
    info = EngineInfo(
        base,
        text.sha256,
        "float32",
        "fake-1",
        replica,
        CONTEXT_TOKENS,
        text.vocabulary,
        16,
        base_dir(),
        64,
        1 << 20,
    )
    end = text.token_id("<|im_end|>")
    assert end is not None
    return FakeEngine(text, info, frozenset({end}))


def always(fault: Fault) -> Callable[[EngineRequest], Fault]:
    """For ``FakeEngine.fault``: every request meets it."""
    return lambda request: fault


def bench_of(engine: EngineClient) -> Bench:
    prompts = [tuple(tokenizer().encode(text, False)) for text in ("the lorry", "many tenants", "東京 🚚")]
    twin = replace(ADAPTERS[0], scope=AdapterScope("a_twin"))
    return Bench(engine, tokenizer(), ADAPTERS, twin, prompts, long_tokens=10_000)


@asynccontextmanager
async def over_a_socket(folder: Path) -> AsyncIterator[tuple[FakeEngine, Bench]]:
    """A fake engine, and the bench of a client that reaches it by the transport."""
    engine = fake_engine()
    server = await serve_engine(engine, f"unix:{folder}/e.sock")
    client = GrpcEngineClient(server.address)
    try:
        yield engine, bench_of(client)
    finally:
        await client.close()
        await server.stop()
