"""The real base model, prepared once per LORRY_HOME and shared by every test marked ``model``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lorry.cli.model import is_prepared, model_directory, prepare_smollm2
from lorry.config import lorry_home


def prepared_base() -> Path:
    """The base's directory. Skips where it is not prepared; with LORRY_TEST_REQUIRE=all prepares it instead."""
    home = lorry_home()
    if os.environ.get("LORRY_TEST_REQUIRE") == "all":
        return prepare_smollm2(home)
    if not is_prepared(model_directory(home), rehash=False):
        pytest.skip("the base model is not prepared; run: make model")
    return model_directory(home)
