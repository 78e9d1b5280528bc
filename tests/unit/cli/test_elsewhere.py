"""Flags of `lorry serve` for what lies outside its home: refused by name, before anything is begun."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from lorry.cli.app import build_parser, main
from lorry.cli.elsewhere import Elsewhere, tls_of
from lorry.cli.homes import Home
from lorry.cli.serve import settings_of
from lorry.config import StoreConfig, TlsConfig
from lorry.errors import FailedPrecondition
from lorry.ids import TenantId
from lorry.registry.entries import KeyEntry
from lorry.registry.external import check_peppers, shown
from lorry.registry.keys import Peppers, pepper_id
from tests.support.certificates import make_certificates
from tests.support.tracers import write_tracer_base

PASSWORD = "hunter2-of-the-registry"


def parsed(*flags: str) -> argparse.Namespace:
    return build_parser().parse_args(["serve", *flags])


BAD: list[tuple[dict[str, str], tuple[str, ...]]] = [
    ({"--registry-url": f"mysql://u:{PASSWORD}@h/d"}, ("--registry-url",)),
    ({"--registry-url": f"postgresql://u:{PASSWORD}@h:port/d"}, ("--registry-url",)),
    ({"--registry-url": "sqlite://"}, ("--registry-url", "memory")),
    ({"--store": "bucket"}, ("--store", "s3://")),
    ({"--store": f"s3://key:{PASSWORD}@bucket"}, ("--store",)),
    ({"--s3-endpoint": "http://h:1"}, ("--s3-endpoint", "--store")),
    ({"--store": "s3://bucket", "--s3-endpoint": "h:1"}, ("--s3-endpoint", "http://")),
    ({"--tls-cert": "/none/cert.pem"}, ("--tls-key", "together")),
    ({"--tls-client-ca": "/none/ca.pem"}, ("--tls-cert", "together")),
    ({"--tls-cert": "/none/cert.pem", "--tls-key": "/none/key.pem"}, ("--tls-cert", "/none/cert.pem")),
    ({"--registry-url": "postgresql://u@h"}, ("--registry-url", "no database")),
    ({"--demo": "", "--store": "s3://bucket"}, ("--demo",)),
]


@pytest.mark.parametrize(("flags", "words"), BAD, ids=[" ".join(flags) for flags, _ in BAD])
def test_bad_flags(
    flags: dict[str, str], words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    if "--demo" in flags:
        (home / "demo").mkdir(parents=True)
        (home / "demo" / "keys.json").write_text("{}")
    given = [word for pair in flags.items() for word in pair if word]
    assert main(["serve", "--base", str(tmp_path), "--home", str(home), *given]) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert len(error.splitlines()) == 1, error
    assert error.startswith("lorry: INVALID_ARGUMENT"), error
    assert not [word for word in words if word not in error], error
    assert PASSWORD not in error
    assert home.exists() == ("--demo" in flags)


def test_the_environment_names_a_registry_and_keeps_it_from_children() -> None:
    url = f"postgresql://lorry:{PASSWORD}@db.test:5433/lorry?sslmode=require"
    environ = {"LORRY_REGISTRY_URL": url, "AWS_REGION": "eu-west-1", "AWS_SECRET_ACCESS_KEY": "s"}
    found = Elsewhere.of(parsed("--store", "s3://bucket/some/prefix"), environ)
    assert found.registry_url == url
    assert "LORRY_REGISTRY_URL" not in environ
    assert found.store == StoreConfig("s3://bucket/some/prefix", region="eu-west-1")
    assert PASSWORD not in repr(found)
    assert shown(url) == "postgresql://lorry@db.test:5433/lorry"
    flagged = Elsewhere.of(parsed("--registry-url", "sqlite:////tmp/r.db"), {"LORRY_REGISTRY_URL": url})
    assert flagged.registry_url == "sqlite:////tmp/r.db"
    nothing = Elsewhere.of(parsed(), {})
    assert (nothing.registry_url, nothing.store) == (None, None)


def test_flags_of_transport_reach_the_gateway(tmp_path: Path) -> None:
    write_tracer_base(tmp_path / "base")
    made = make_certificates(tmp_path)
    files = ["--tls-cert", str(made.server[0]), "--tls-key", str(made.server[1]), "--tls-client-ca", str(made.ca)]
    flags = [*files, "--max-message", "8MiB", "--keepalive", "15", "--connection-age", "3600"]
    options = parsed(*flags, "--dtype", "float32", "--memory-budget", "16MiB")
    gateway = settings_of(options, Home(tmp_path), tmp_path / "base", None).gateway
    assert gateway.tls == tls_of(options) == TlsConfig(*made.server, made.ca)
    assert gateway.tls.mutual
    assert (gateway.max_message_bytes, gateway.keepalive_seconds) == (8 << 20, 15.0)
    assert (gateway.connection_age_seconds, gateway.connection_age_grace_seconds) == (3600.0, None)


def test_another_pepper_is_found_out_and_a_rotated_one_is_not() -> None:
    def key(pepper: bytes, revoked_at: float | None = None) -> KeyEntry:
        return KeyEntry("k", TenantId("t"), "p", "owner", "mac", pepper_id(pepper), None, revoked_at)

    old, new, other = b"o" * 32, b"n" * 32, b"x" * 32
    check_peppers([], Peppers((new,)), "--registry-url")
    check_peppers([key(old), key(new)], Peppers((new, old)), "--registry-url")
    check_peppers([key(old), key(new)], Peppers((new,)), "--registry-url")
    check_peppers([key(other, 1.0)], Peppers((new,)), "--registry-url")
    with pytest.raises(FailedPrecondition, match=r"--registry-url: .*secrets folder"):
        check_peppers([key(other), key(new, 1.0)], Peppers((new, old)), "--registry-url")
