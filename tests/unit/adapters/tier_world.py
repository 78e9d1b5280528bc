"""A store with adapters, and tiers over it that tests can look into."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from lorry.adapters.disk import DiskTier
from lorry.adapters.image.build import DeviceImage, image_builder
from lorry.adapters.manifest import AdapterRef, files_digest, scan_directory
from lorry.adapters.plan import AdapterPlan
from lorry.adapters.store import DirectoryStore
from lorry.adapters.tiers import HostTierStore
from lorry.ids import AdapterDigest, AdapterScope
from lorry.residency.host import Failed, Fetching, HostState

from . import craft

FILES = 2
WAIT_S = 30


class CountingStore(DirectoryStore):
    """A real store that counts fetches by key and can hold them at a gate."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.fetched: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def fetch_to_sync(self, key: str, path: Path, expected_size: int, expected_sha256: str) -> None:
        self.fetched.append(key)
        assert self.gate.wait(WAIT_S)
        super().fetch_to_sync(key, path, expected_size, expected_sha256)


@dataclass(frozen=True)
class World:
    root: Path
    store: CountingStore

    def upload(
        self,
        seed: int,
        rank: int = 4,
        change: Callable[[Path], object] = lambda folder: None,
        scope: str = "a_own",
    ) -> AdapterRef:
        folder = craft.write_adapter(
            self.root / f"made-{seed}-{rank}", {**craft.CONFIG, "r": rank}, craft.tensors(rank, seed=seed)
        )
        change(folder)
        files = scan_directory(folder)
        ref = AdapterRef(files_digest(files), f"adapters/{seed}-{rank}", files, AdapterScope(scope))
        for file in files:
            self.store.put_file_sync(f"{ref.prefix}/{file.path}", folder / file.path)
        return ref

    def object(self, ref: AdapterRef, name: str = "adapter_model.safetensors") -> Path:
        return self.root / "store" / ref.prefix / name

    def cached(self, ref: AdapterRef, name: str = "adapter_model.safetensors") -> Path:
        return self.root / "cache" / f"{ref.digest}.{ref.scope}" / name

    def disk(self, quota: int = 1 << 30) -> DiskTier:
        return DiskTier(self.root / "cache", quota, self.store)


class Tier(HostTierStore[DeviceImage]):
    """Tells the test when a fetch ended, so that nothing sleeps."""

    def __init__(self, world: World, budget: int = 1 << 30, threads: int = 2, quota: int = 1 << 30) -> None:
        self.ended = threading.Semaphore(0)
        self.built: list[AdapterDigest] = []
        build = image_builder(craft.SPEC, torch.float32)

        def counted(folder: Path, plan: AdapterPlan, digest: AdapterDigest) -> DeviceImage:
            self.built.append(digest)
            return build(folder, plan, digest)

        super().__init__(
            world.disk(quota),
            craft.SPEC,
            counted,
            budget,
            threads=threads,
            on_change=self.ended.release,
        )

    def settle(self, ref: AdapterRef) -> HostState:
        """The first answer that is not Fetching."""
        while isinstance(state := self.ensure(ref), Fetching):
            assert self.ended.acquire(timeout=WAIT_S)
        return state

    def failure(self, ref: AdapterRef) -> Exception:
        state = self.settle(ref)
        assert isinstance(state, Failed)
        return state.error


def image_bytes(world: World, ref: AdapterRef) -> int:
    tier = Tier(world)
    tier.settle(ref)
    tier.close()
    return tier.image(ref.key).nbytes
