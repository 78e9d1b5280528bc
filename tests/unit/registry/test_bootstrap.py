"""First start: secrets of mode 0600, one key shown once, and nothing by default."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from lorry.errors import Unauthenticated
from lorry.registry import Registry, SecretError, bootstrap, issue_admin_key, load_secrets
from tests.unit.registry.conftest import NOW

NONE: dict[str, str] = {}


async def test_first_and_later_starts(empty_url: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = await bootstrap(home, empty_url, NONE)
    assert first.admin_key is not None
    assert first.admin_key not in repr(first)
    for path in (home / "secrets").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert len(path.read_text().strip()) == 64
    assert stat.S_IMODE((home / "secrets").stat().st_mode) == 0o700

    second = await bootstrap(home, empty_url, NONE)
    assert second.admin_key is None
    assert second.secrets == first.secrets == load_secrets(home, NONE)

    registry = Registry(empty_url, second.peppers)
    snapshot = await registry.snapshots().start()
    assert snapshot.authenticate(first.admin_key, NOW).admin
    other = await issue_admin_key(registry.database, second.peppers)
    assert (await registry.snapshots().start()).authenticate(other, NOW).admin
    await registry.close()


async def test_two_first_starts_at_once(empty_url: str, tmp_path: Path) -> None:
    both = await asyncio.gather(bootstrap(tmp_path, empty_url, NONE), bootstrap(tmp_path, empty_url, NONE))
    keys = [start.admin_key for start in both if start.admin_key]
    assert len(keys) == 1
    assert both[0].secrets == both[1].secrets
    registry = Registry(empty_url, both[0].peppers)
    assert (await registry.snapshots().start()).authenticate(keys[0], NOW).admin
    await registry.close()


async def test_two_deployments_share_no_secret(tmp_path: Path) -> None:
    one = await bootstrap(tmp_path / "1", f"sqlite:///{tmp_path / '1.db'}", NONE)
    two = await bootstrap(tmp_path / "2", f"sqlite:///{tmp_path / '2.db'}", NONE)
    assert one.peppers.secrets != two.peppers.secrets
    assert one.secrets.kv_salt != two.secrets.kv_salt
    registry = Registry(f"sqlite:///{tmp_path / '1.db'}", two.peppers)
    assert one.admin_key is not None
    with pytest.raises(Unauthenticated):
        (await registry.snapshots().start()).authenticate(one.admin_key, NOW)
    await registry.close()


async def test_a_lost_pepper_is_not_replaced(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'registry.db'}"
    await bootstrap(tmp_path, url, NONE)
    (tmp_path / "secrets" / "key_pepper").unlink()
    with pytest.raises(SecretError, match="restore it"):
        await bootstrap(tmp_path, url, NONE)
    assert not (tmp_path / "secrets" / "key_pepper").exists()


def test_secrets_must_be_private_and_long(tmp_path: Path) -> None:
    with pytest.raises(SecretError, match="missing"):
        load_secrets(tmp_path, NONE)
    (tmp_path / "secrets").mkdir()
    for name in ("key_pepper", "kv_salt"):
        path = tmp_path / "secrets" / name
        path.write_text("ab" * 32)
        path.chmod(0o644)
    with pytest.raises(SecretError, match="chmod 600"):
        load_secrets(tmp_path, NONE)
    for name in ("key_pepper", "kv_salt"):
        (tmp_path / "secrets" / name).chmod(0o600)
    load_secrets(tmp_path, NONE)
    (tmp_path / "secrets" / "key_pepper").write_text("ab" * 8)
    with pytest.raises(SecretError, match="32 bytes"):
        load_secrets(tmp_path, NONE)
    (tmp_path / "secrets" / "key_pepper").write_text("secret" * 20)
    with pytest.raises(SecretError, match="hex"):
        load_secrets(tmp_path, NONE)


def test_secrets_by_environment(tmp_path: Path) -> None:
    environ = {"LORRY_KEY_PEPPER": "11" * 32 + "," + "22" * 32, "LORRY_KV_SALT": "33" * 32}
    found = load_secrets(tmp_path, environ)
    assert found.peppers.secrets == (b"\x11" * 32, b"\x22" * 32)
    assert found.kv_salt == b"\x33" * 32
