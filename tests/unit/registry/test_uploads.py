"""The upload spool: what is swept, and how many a tenant may have open."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from lorry.errors import QuotaExceeded
from lorry.ids import TenantId
from lorry.registry.adapters.uploads import UploadLimits, Uploads, UploadState
from lorry.registry.authz import VerifiedTenantId

TENANT = VerifiedTenantId(TenantId("t-one"))


async def test_uploads_made_at_once_do_not_pass_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both would have counted before either shows, if they could."""
    uploads, both = Uploads(tmp_path / "spool", UploadLimits(max_uploads=1)), threading.Barrier(2)
    sweep = uploads._sweep

    def counted(tenant: VerifiedTenantId, now: float) -> int:
        found = sweep(tenant, now)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)
        return found

    monkeypatch.setattr(uploads, "_sweep", counted)
    outcomes = await asyncio.gather(*(uploads.create(TENANT, "a") for _ in range(2)), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {QuotaExceeded, UploadState}
    assert len(list((tmp_path / "spool").iterdir())) == 1, "what was refused leaves nothing behind"


@pytest.mark.parametrize(("age_s", "swept"), [(10.0, False), (2 * 3600.0, True)])
async def test_half_made_folders_are_swept_once_nobody_can_be_making_them(
    tmp_path: Path, age_s: float, swept: bool
) -> None:
    making = tmp_path / "spool" / ".half"
    (making / "files").mkdir(parents=True)
    at = time.time() - age_s
    os.utime(making, (at, at))
    await Uploads(tmp_path / "spool").create(TENANT, "a")
    assert making.exists() is not swept


async def test_an_upload_that_a_crash_emptied_is_swept(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path / "spool")
    broken = await uploads.create(TENANT, "a")
    (tmp_path / "spool" / broken.id / "upload.json").write_text("")
    fine = await uploads.create(TENANT, "a")
    assert [folder.name for folder in (tmp_path / "spool").iterdir()] == [fine.id]
