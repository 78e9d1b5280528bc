"""The real engine keeps the EngineClient contract, in process."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from lorry.config import SchedulerConfig
from lorry.text import Tokenizer
from tests.support.adapters import save_adapter
from tests.support.engines import TINY_MEMORY, engine_config, running
from tests.support.tiny_base import write_tiny_base
from tests.unit.engine_contract.bench import Bench
from tests.unit.engine_contract.contract import EngineContract


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engine")
    base = write_tiny_base(folder / "base", max_position_embeddings=8192)
    for i in range(2):
        save_adapter(base, folder / f"a{i}", seed=i + 1)
    return folder


class TestLocalEngine(EngineContract):
    @pytest.fixture
    async def bench(self, folders: Path) -> AsyncIterator[Bench]:
        # A long context, so that a long request is still running whatever else the machine does.
        scheduler = SchedulerConfig(max_sequences=8, token_budget=64, prefill_chunk_tokens=64, context_tokens=8192)
        memory = replace(TINY_MEMORY, budget_bytes=32 << 20)
        async with running(engine_config(folders / "base", scheduler=scheduler, memory=memory)) as r:
            adapters = [r.host.add(folders / f"a{i}") for i in range(2)]
            twin = r.host.add(folders / "a0", "a_twin")
            prompts = [(1, 2, 3), (40, 41), (100, 7, 9, 30)]
            yield Bench(r.engine, Tokenizer.load(folders / "base"), adapters, twin, prompts, long_tokens=8000)
