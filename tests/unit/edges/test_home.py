"""What lies in a home is not for other users of the machine, and one tenant's upload does not break another's."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any, cast

import pytest

from lorry.cli.homes import Home, HomeLock
from lorry.ids import TenantId
from lorry.registry import bootstrap
from lorry.registry.adapters.uploads import Uploads
from lorry.registry.authz import VerifiedTenantId


async def test_a_home_that_was_there_already_is_closed_to_others(tmp_path: Path) -> None:
    """As it is where the base model was prepared in it first, under an ordinary umask."""
    home = Home(tmp_path / "home")
    home.root.mkdir(mode=0o755)
    home.root.chmod(0o755)
    with HomeLock(home):
        await bootstrap(home.root, home.registry_url, {})
        registry = home.root / "registry.sqlite3"
        assert not home.root.stat().st_mode & 0o077 or not registry.stat().st_mode & 0o077


async def test_two_uploads_made_at_once_do_not_break_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads = Uploads(tmp_path / "spool")
    one, two = (VerifiedTenantId(TenantId(name)) for name in ("t-one", "t-two"))
    made: list[str] = []
    dumps = json.dumps

    def meanwhile(value: Any, **options: Any) -> str:
        """The second thread's call runs while the first is between its folder and its upload.json."""
        if not made:
            made.append("")
            made[0] = uploads._create(two, "a-two", secrets.token_hex(16)).id
        return dumps(value, **options)

    monkeypatch.setattr("lorry.registry.adapters.uploads.json.dumps", cast(Any, meanwhile))
    first = await uploads.create(one, "a-one")
    assert (await uploads.get(one, "a-one", first.id)).files == {}
    assert (await uploads.get(two, "a-two", made[0])).files == {}
