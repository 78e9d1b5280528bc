"""Fixtures for every test. The environment is set before torch loads."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads ruin shared cores
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # transformers is an oracle here and has nothing to fetch

from pathlib import Path

import pytest

from tests.prepared_base import prepared_base


@pytest.fixture(scope="session")
def base_dir() -> Path:
    """SmolLM2-135M-Instruct; mark the test ``model``."""
    return prepared_base()
