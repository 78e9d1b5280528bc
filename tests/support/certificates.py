"""An authority, a server's certificate and a client's, made for one test run by the system's openssl."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificates:
    """PEM files. ``other_ca`` signed nothing here."""

    ca: Path
    other_ca: Path
    server: tuple[Path, Path]
    client: tuple[Path, Path]


def make_certificates(folder: Path, days: int = 90) -> Certificates:
    """For 127.0.0.1 and the name ``gateway.test``; each is (certificate, key). Signed ones hold for so many days from
    now; less than none have expired."""
    ca, ca_key = _authority(folder, "ca")
    other, _ = _authority(folder, "other")
    return Certificates(
        ca,
        other,
        _signed(folder, "server", ca, ca_key, "subjectAltName=IP:127.0.0.1,DNS:gateway.test", days),
        _signed(folder, "client", ca, ca_key, "extendedKeyUsage=clientAuth", days),
    )


def _authority(folder: Path, name: str) -> tuple[Path, Path]:
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    _openssl("req", "-x509", *_new(name, key), "-out", cert, "-days", "90")
    return cert, key


def _signed(folder: Path, name: str, ca: Path, ca_key: Path, extension: str, days: int) -> tuple[Path, Path]:
    cert, key, request, extensions = (folder / f"{name}.{end}" for end in ("pem", "key", "csr", "ext"))
    extensions.write_text(extension)
    _openssl("req", *_new(name, key), "-out", request)
    signing = ("-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-extfile", extensions)
    _openssl("x509", "-req", "-in", request, *signing, "-out", cert, "-days", str(days))
    return cert, key


def _new(name: str, key: Path) -> tuple[str | Path, ...]:
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    return (*curve, "-keyout", key, "-subj", f"/CN=lorry test {name}")


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


__all__ = ["Certificates", "make_certificates"]
