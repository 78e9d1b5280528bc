"""An engine in this process for benchmarks: over SmolLM2 or a tiny random base, adapters out of a folder store."""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from lorry.adapters.manifest import AdapterRef, files_digest, scan_directory
from lorry.cli.model import prepare_smollm2
from lorry.config import EngineConfig, MemoryConfig, SchedulerConfig, StoreConfig, TierConfig, lorry_home
from lorry.engine.build import build
from lorry.engine.contract import EngineClient, EngineRequest, Finished, Started, Tokens
from lorry.ids import AdapterScope, RequestId, TenantId
from lorry.request import SamplingParams, StoppingParams

TINY_CONTEXT = 1024
_numbers = itertools.count()


def write_tiny(folder: Path) -> Path:
    """The tests' random base, with a longer context."""
    root = str(Path(__file__).resolve().parents[1])
    if root not in sys.path:
        sys.path.append(root)
    from tests.support.tiny_base import write_tiny_base

    write_tiny_base(folder, max_position_embeddings=TINY_CONTEXT)
    return folder


@contextmanager
def chosen_base(options: argparse.Namespace) -> Iterator[tuple[Path, Path]]:
    """(base, scratch folder) for a parser that has ``add_base_option``."""
    with tempfile.TemporaryDirectory() as scratch:
        yield (
            write_tiny(Path(scratch) / "base") if options.tiny else prepare_smollm2(lorry_home()),
            Path(scratch),
        )


def add_base_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tiny", action="store_true", help="a tiny random base instead of SmolLM2: seconds, not minutes"
    )


def engine_config(base_dir: Path, scratch: Path, *, tiny: bool, **changes: object) -> EngineConfig:
    """The defaults on SmolLM2; on the tiny base float32, one thread, pages of 16 tokens. Any field may be changed."""
    (scratch / "store").mkdir(parents=True, exist_ok=True)
    config = EngineConfig(
        base_dir=base_dir, store=StoreConfig(f"file://{scratch / 'store'}"), tiers=TierConfig(scratch / "cache")
    )
    if tiny:
        config = replace(
            config,
            dtype="float32",
            threads=1,
            scheduler=SchedulerConfig(token_budget=64, prefill_chunk_tokens=64, context_tokens=TINY_CONTEXT),
            memory=MemoryConfig(budget_bytes=32 << 20, page_tokens=16, max_slots=4, max_rank=64),
        )
    return replace(config, **changes)  # type: ignore[arg-type]  # the names are EngineConfig's own


def publish(config: EngineConfig, folder: Path) -> AdapterRef:
    """Puts an adapter's files where the store has them."""
    files = scan_directory(folder)
    digest = files_digest(files)
    ref = AdapterRef(digest, f"adapters/sha256/{digest}", files, AdapterScope("bench"))
    target = Path(config.store.url.removeprefix("file://")) / ref.prefix
    target.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copyfile(folder / file.path, target / file.path)
    return ref


@asynccontextmanager
async def running(config: EngineConfig) -> AsyncIterator[EngineClient]:
    """Warm."""
    engine = build(config).open()
    try:
        await engine.info()
        yield engine
    finally:
        await engine.close()


@dataclass(frozen=True, slots=True)
class Reply:
    """``sent``, ``first`` and ``last`` are readings of one clock: the call, its first token, its end."""

    ids: tuple[int, ...]
    sent: float
    first: float
    last: float
    finished: Finished

    @property
    def ttft(self) -> float:
        return self.first - self.sent


async def ask(
    engine: EngineClient,
    prompt: Sequence[int],
    out: int,
    ref: AdapterRef | None = None,
    *,
    salt: bytes = b"",
    tenant: str = "bench",
) -> Reply:
    """Greedy, end of text off. Raises what the engine raises."""
    request = EngineRequest(
        request_id=RequestId(f"bench-{next(_numbers)}"),
        tenant=TenantId(tenant),
        prompt=tuple(prompt),
        adapter=ref,
        base=(await engine.info()).base,
        sampling=SamplingParams(temperature=0.0),
        stopping=StoppingParams(max_tokens=out, ignore_eos=True),
        cache_salt=salt,
    )
    sent, first = time.perf_counter(), 0.0
    ids: list[int] = []
    finished: Finished | None = None
    async for event in engine.generate(request):
        if isinstance(event, Started):
            first = time.perf_counter()
        elif isinstance(event, Tokens):
            ids.extend(event.token_ids)
        else:
            finished = event
    assert finished is not None, "a stream ends with Finished or raises"
    return Reply(tuple(ids), sent, first, time.perf_counter(), finished)
