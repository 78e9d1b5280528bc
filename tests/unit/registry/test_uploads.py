"""The upload spool: what is swept, and how many a tenant may have open."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from lorry.errors import QuotaExceeded
from lorry.ids import TenantId
from lorry.registry.adapters.uploads import UploadLimits, Uploads
from lorry.registry.authz import VerifiedTenantId

TENANT = VerifiedTenantId(TenantId("t-one"))


async def test_uploads_made_at_once_do_not_pass_the_limit(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path / "spool", UploadLimits(max_uploads=4))
    outcomes = await asyncio.gather(*(uploads.create(TENANT, "a") for _ in range(24)), return_exceptions=True)
    assert sum(not isinstance(outcome, BaseException) for outcome in outcomes) == 4
    assert all(isinstance(outcome, QuotaExceeded) for outcome in outcomes if isinstance(outcome, BaseException))
    assert len(list((tmp_path / "spool").iterdir())) == 4, "what was refused leaves nothing behind"


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
