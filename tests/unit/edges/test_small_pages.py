"""Page sizes that the memory settings allow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.engines import TINY_MEMORY, ask, engine_config, running
from tests.support.tiny_base import write_tiny_base


@pytest.mark.parametrize("page_tokens", [1, 4])
async def test_an_engine_starts_with_small_pages(tmp_path: Path, page_tokens: int) -> None:
    write_tiny_base(tmp_path / "base")
    async with running(engine_config(tmp_path / "base", memory=replace(TINY_MEMORY, page_tokens=page_tokens))) as r:
        assert len((await ask(r.engine, [1, 2, 3], None, 6)).ids) == 6
