"""Files of TLS are refused before anything is bound: by flag, path and remedy, and never with what a key file holds."""

from __future__ import annotations

import errno
import os
import ssl
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lorry import pem
from lorry.config import GatewayConfig, TlsConfig
from lorry.errors import InvalidRequest
from lorry.gateway import tls as tls_module
from lorry.gateway.tls import ServerTls
from tests.support.certificates import Certificates, make_certificates


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def config(made: Certificates) -> TlsConfig:
    return TlsConfig(*made.server, made.ca)


def _missing(path: Path, made: Certificates) -> None:
    path.unlink()


def _folder(path: Path, made: Certificates) -> None:
    path.unlink()
    path.mkdir()


def _text(path: Path, made: Certificates) -> None:
    path.write_text("secret words, no PEM")


def _der(path: Path, made: Certificates) -> None:
    path.write_bytes(bytes(range(256)))


def _cut(path: Path, made: Certificates) -> None:
    path.write_bytes(path.read_bytes()[:120])


def _large(path: Path, made: Certificates) -> None:
    path.write_bytes(path.read_bytes() + b"\n" * (1 << 20))


def _damaged(path: Path, made: Certificates) -> None:
    lines = path.read_text().splitlines()
    lines[1] = lines[1][:10] + "AAAA" + lines[1][14:]
    lines[2] = "A" * 64
    path.write_text("\n".join(lines))


def _of_another(path: Path, made: Certificates) -> None:
    path.write_bytes(made.client[1].read_bytes())


def _encrypted(path: Path, made: Certificates) -> None:
    command = ["openssl", "pkcs8", "-topk8", "-in", path, "-out", f"{path}.enc", "-passout", "pass:secret"]
    subprocess.run([*map(str, command)], check=True, capture_output=True)
    Path(f"{path}.enc").replace(path)


BAD: list[tuple[str, Callable[[Path, Certificates], None], str]] = [
    *((field, spoil, "--tls-") for field in ("cert", "key", "client_ca") for spoil in (_missing, _folder, _large)),
    *((field, spoil, "PEM") for field in ("cert", "key", "client_ca") for spoil in (_text, _der, _cut)),
    ("cert", _damaged, "--tls-"),
    ("key", _damaged, "--tls-key"),
    ("client_ca", _damaged, "--tls-client-ca"),
    ("key", _of_another, "is not the key of the first certificate"),
    ("key", _encrypted, "passphrase"),
]


@pytest.mark.parametrize(("field", "spoil", "words"), BAD)
def test_bad_files(
    made: Certificates,
    tmp_path: Path,
    field: str,
    spoil: Callable[[Path, Certificates], None],
    words: str,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    sources = {"cert": made.server[0], "key": made.server[1], "client_ca": made.ca}
    paths = {name: tmp_path / f"{name}.pem" for name in sources}
    for name, source in sources.items():
        paths[name].write_bytes(source.read_bytes())
    spoil(paths[field], made)
    held = paths[field].read_text("latin-1") if paths[field].is_file() else ""
    with pytest.raises(InvalidRequest) as caught:
        ServerTls(TlsConfig(**paths))
    message = caught.value.message
    assert words in message
    assert str(paths[field]) in message
    flag = f"--tls-{field.replace('_', '-')}"
    assert flag in message or (field, spoil) == ("cert", _damaged), message
    said = message + caplog.text + "".join(capfd.readouterr())
    assert not [line for line in held.splitlines() if len(line) > 12 and "-----" not in line and line in said]
    error: BaseException | None = caught.value
    while error is not None:  # nor in what a traceback would show
        assert not [line for line in held.splitlines() if len(line) > 40 and line in repr(error)]
        error = error.__cause__


def test_unreadable_files_are_named(config: TlsConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is for anyone but root, who reads every file."""
    mine = tmp_path / "key.pem"
    mine.write_bytes(config.key.read_bytes())
    opened = Path.open

    def refused(path: Path, *how: Any) -> Any:
        if path == mine:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *how)

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(InvalidRequest, match=r"--tls-key.*Permission denied"):
        ServerTls(replace(config, key=mine))


def test_good_files_of_this_user_alone_have_no_warning(config: TlsConfig, tmp_path: Path) -> None:
    mine = tmp_path / "key.pem"
    mine.write_bytes(config.key.read_bytes())
    for mode, warned in ((0o600, False), (0o400, False), (0o640, True), (0o604, True)):
        mine.chmod(mode)
        warnings = ServerTls(replace(config, key=mine)).warnings
        assert bool(warnings) == warned, (oct(mode), warnings)
    assert str(mine) in warnings[0]
    assert "chmod 600" in warnings[0]


def test_words_between_certificates_do_no_harm(config: TlsConfig, made: Certificates, tmp_path: Path) -> None:
    both = tmp_path / "ca.pem"
    both.write_bytes("Größe: eins\n".encode() + made.ca.read_bytes() + b"\nnext\n" + made.other_ca.read_bytes())
    assert ServerTls(replace(config, client_ca=both)).http_context().cert_store_stats()["x509_ca"] == 2


def test_an_expired_certificate_is_warned_of(tmp_path: Path) -> None:
    old = make_certificates(tmp_path, days=-1)
    warnings = ServerTls(TlsConfig(*old.server)).warnings
    assert [word for word in warnings if "--tls-cert" in word and "has expired" in word and str(old.server[0]) in word]


def test_files_that_change_while_they_are_read_are_read_again(
    made: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ports have the same pair: a context takes paths, gRPC bytes."""
    (tmp_path / "other").mkdir()
    other = make_certificates(tmp_path / "other")
    config = TlsConfig(tmp_path / "cert.pem", tmp_path / "key.pem")
    whole, times = tls_module._context, []

    def put(pair: tuple[Path, Path]) -> None:
        for source, target in zip(pair, (config.cert, config.key), strict=True):
            target.write_bytes(source.read_bytes())

    def renewed_meanwhile(*given: Any) -> ssl.SSLContext:
        times.append(1)
        if len(times) == 1:
            put(other.server)
        return whole(*given)

    put(made.server)
    monkeypatch.setattr(tls_module, "_context", renewed_meanwhile)
    assert ServerTls(config)._material.files.cert == other.server[0].read_bytes()
    assert len(times) == 2


def test_a_repr_shows_no_key(config: TlsConfig) -> None:
    tls = ServerTls(config)
    lines = [line for line in config.key.read_text().splitlines() if len(line) > 40]
    shown = repr(tls._material) + repr(tls.__dict__) + repr(GatewayConfig(tls=config)) + str(tls.state())
    assert lines
    assert not [line for line in lines if line in shown]


def test_times_of_every_encoding(tmp_path: Path) -> None:
    """UTCTime until 2049, GeneralizedTime after."""
    for days, year in ((90, None), (365 * 40, 2060)):
        found = make_certificates(tmp_path, days)
        (validity,) = pem.certificates(found.server[0].read_bytes())
        assert validity.not_after - validity.not_before == days * 86400
        assert not validity.complaint()
        assert validity.complaint(validity.not_before - 1).startswith("holds only from")
        assert validity.complaint(validity.not_after + 1).startswith("has expired")
        assert year is None or pem.day(validity.not_after)[:4] >= str(year)
