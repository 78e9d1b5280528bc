"""Images that every test of storage loads."""

from __future__ import annotations

import pytest

from tests.unit.engine.gpu.storage import Made, make_images


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_images(tmp_path_factory.mktemp("storage"))
