"""The deployment's secrets: key pepper and KV salt, made at first start. There is no default value.

Files lie under ``{home}/secrets`` with mode 0600 in a folder with mode 0700. Scaled processes may get them by
environment instead: ``LORRY_KEY_PEPPER`` (hex, several separated by commas, newest first) and
``LORRY_KV_SALT`` (hex).
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lorry.registry.keys import Peppers

PEPPER_FILE, SALT_FILE = "key_pepper", "kv_salt"
PEPPER_VARIABLE, SALT_VARIABLE = "LORRY_KEY_PEPPER", "LORRY_KV_SALT"
_BYTES = 32


class SecretError(RuntimeError):
    """A secret is missing, too short, or readable by others. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Secrets:
    peppers: Peppers = field(repr=False)
    kv_salt: bytes = field(repr=False)


def load_secrets(home: Path, environ: Mapping[str, str] = os.environ) -> Secrets:
    """Both secrets, from the environment or else their files. Raises SecretError."""
    folder = home / "secrets"
    peppers = _load(PEPPER_VARIABLE, folder / PEPPER_FILE, environ)
    salts = _load(SALT_VARIABLE, folder / SALT_FILE, environ)
    return Secrets(Peppers(peppers), salts[0])


def have_secret(home: Path, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a pepper is there already."""
    return bool(environ.get(PEPPER_VARIABLE)) or (home / "secrets" / PEPPER_FILE).exists()


def make_secrets(home: Path, environ: Mapping[str, str] = os.environ) -> Secrets:
    """Makes what neither the environment nor a file has, and answers both. Safe in several processes at once."""
    folder = home / "secrets"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    for variable, name in ((PEPPER_VARIABLE, PEPPER_FILE), (SALT_VARIABLE, SALT_FILE)):
        if not environ.get(variable) and not (folder / name).exists():
            _make(folder / name)
    return load_secrets(home, environ)


def _make(path: Path) -> None:
    """Whole or not at all, and never over one that another process made meanwhile."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        handle.write(secrets.token_hex(_BYTES) + "\n")
        handle.flush()
        os.fsync(handle.fileno())
    try:
        os.link(draft, path)
    except FileExistsError:
        pass  # the other process's secret is the deployment's
    finally:
        draft.unlink()


def _load(variable: str, path: Path, environ: Mapping[str, str]) -> tuple[bytes, ...]:
    if text := environ.get(variable):
        return _parse(variable, text.split(","))
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise SecretError(f"{path}: missing; run the first start, or set {variable}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise SecretError(f"{path}: mode {stat.S_IMODE(mode):04o} lets others read it; run `chmod 600` on it")
    return _parse(str(path), path.read_text().split())


def _parse(source: str, lines: list[str]) -> tuple[bytes, ...]:
    try:
        found = tuple(bytes.fromhex(line) for line in lines)
    except ValueError:
        raise SecretError(f"{source}: is not hex; restore it from your backup") from None
    if not found or any(len(secret) < _BYTES for secret in found):
        raise SecretError(f"{source}: each secret needs {_BYTES} bytes ({2 * _BYTES} hex digits) or more")
    return found


__all__ = ["SecretError", "Secrets", "have_secret", "load_secrets", "make_secrets"]
