"""From a real S3 server through disk to the image in host memory."""

import threading
from pathlib import Path

import torch

from lorry.adapters.image.build import image_builder
from lorry.adapters.local_s3 import LocalS3
from lorry.adapters.manifest import AdapterRef, files_digest, scan_directory
from lorry.adapters.store import open_store
from lorry.adapters.tiers import open_host_tier
from lorry.config import TierConfig
from lorry.errors import AdapterDigestMismatch
from lorry.ids import AdapterScope
from lorry.residency.host import Failed, Fetching, HostState, Ready
from tests.unit.adapters import craft


def test_object_store_to_disk_to_host(s3: LocalS3, tmp_path: Path) -> None:
    folder = craft.write_adapter(tmp_path / "made")
    files = scan_directory(folder)
    ref = AdapterRef(files_digest(files), "tenants/one/7", files, AdapterScope("a_own"))
    store = open_store(s3.config())
    for file in files:
        store.put_file_sync(f"{ref.prefix}/{file.path}", folder / file.path)

    ended = threading.Semaphore(0)

    def tier_over(cache: str) -> tuple[HostState, list[str]]:
        tier = open_host_tier(
            TierConfig(cache_dir=tmp_path / cache),
            store,
            craft.SPEC,
            image_builder(craft.SPEC, torch.bfloat16),
            on_change=ended.release,
        )
        seen = [tier.tier_of(ref.key)]
        while isinstance(state := tier.ensure(ref), Fetching):
            assert ended.acquire(timeout=30)
        seen.append(tier.tier_of(ref.key))
        if isinstance(state, Ready):
            assert tier.image(ref.key).intact()
        tier.close()
        return state, seen

    assert tier_over("cache") == (Ready(4), ["object_store", "host"])
    assert tier_over("cache") == (Ready(4), ["disk", "host"])

    (folder / "README.md").write_text("x" * files[-1].size)  # the same size, other bytes
    store.put_file_sync(f"{ref.prefix}/{files[-1].path}", folder / "README.md")
    assert tier_over("cache")[0] == Ready(4), "the disk copy is still the version's"
    state, seen = tier_over("another-cache")
    assert isinstance(state, Failed)
    assert isinstance(state.error, AdapterDigestMismatch)
    assert seen == ["object_store", "object_store"]
    store.close()
