"""The page image holds exactly what the plan applies, each piece where its column says, in whichever pages it lands."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lorry.adapters.extra_bytes import extra_bytes
from lorry.adapters.image.build import DeviceImage, build_image
from lorry.adapters.image.memory import CudaPageLocks
from lorry.adapters.image.packed import PackedImage, PageLayout, build_packed, word_sums
from lorry.adapters.image.placing import place
from lorry.adapters.plan import AdapterPlan
from lorry.adapters.validate import validate_directory
from lorry.errors import AdapterLoadFailed
from lorry.ids import AdapterDigest
from lorry.layers.base_tensors import BaseTensors
from lorry.layers.extras import ChunkedEmbedding, ChunkedHead, EmbeddingExtras, HeadExtras
from lorry.layers.slot_row import ALIGN, CHUNK_RANK, SlotRow, largest_chunk_elements
from lorry.layers.spec import DecoderSpec
from lorry.models.weights import read_spec
from tests.support.kinds import LAYER_KINDS, VOCABULARY_KINDS
from tests.support.tiny_base import write_tiny_model
from tests.support.zoo import load_base, make

DIGEST = AdapterDigest("ab" * 32)
KINDS = {
    "patterns": LAYER_KINDS["patterns"],
    "rank 256": LAYER_KINDS["r256"],
    "DoRA on everything": VOCABULARY_KINDS["dora both"],
    "IA3": VOCABULARY_KINDS["ia3 head"],
    "whole matrices and norms": VOCABULARY_KINDS["head, embedding and norms"],
    "tokens": VOCABULARY_KINDS["tokens"],
    "biased head": VOCABULARY_KINDS["lora_bias head"],
    "an IA3 head's input": VOCABULARY_KINDS["ia3 head's input"],
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed") / "base"
    write_tiny_model(folder, "qwen2")
    return folder


@pytest.fixture(scope="module")
def made(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[Path, AdapterPlan]]:
    found = {}
    for name, kind in KINDS.items():
        folder = tmp_path_factory.mktemp("kinds") / "adapter"
        make(load_base(base), folder, kind)
        report = validate_directory(folder, read_spec(base), base_dir=base, probe=False)
        assert report.plan is not None, report.failed
        found[name] = (folder, report.plan)
    return found


def layout_of(spec: DecoderSpec, dtype: torch.dtype = torch.float32, pages: float = 1.0, rank: int = 256) -> PageLayout:
    size = int(largest_chunk_elements(spec) * dtype.itemsize * pages) // ALIGN * ALIGN
    return PageLayout(size, dtype, SlotRow(spec, rank))


def images(
    base: Path, folder: Path, plan: AdapterPlan, dtype: torch.dtype = torch.float32, pages: float = 1.0
) -> tuple[DecoderSpec, PackedImage, DeviceImage]:
    spec = read_spec(base)
    tensors = BaseTensors(base, spec, torch.float32)
    packed = build_packed(folder, plan, spec, layout_of(spec, dtype, pages), DIGEST, tensors)
    return spec, packed, build_image(folder, plan, spec, torch.float32, DIGEST, tensors)


class Device:
    """Pages in an order of its own, as a device would have them, and what lies at an offset."""

    def __init__(self, image: PackedImage) -> None:
        count, page_bytes = image.pages.shape
        self.places = np.random.default_rng(3).permutation(3 * count)[:count].astype(np.int64)
        arena = torch.full((3 * count + 1, page_bytes), 0xFF, dtype=torch.uint8)  # NaN in every type
        arena[torch.from_numpy(self.places)] = image.pages
        self.arena, self.offsets = arena.view(-1), image.offsets(self.places)

    def at(self, column: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        offset = int(self.offsets[column])
        if offset < 0:
            return None
        flat = self.arena.view(dtype)
        return flat[offset : offset + torch.Size(shape).numel()].view(shape)


@pytest.mark.parametrize("pages", [1.0, 3.7])
@pytest.mark.parametrize("name", KINDS)
def test_the_arena_holds_the_adapter(
    base: Path, made: Mapping[str, tuple[Path, AdapterPlan]], name: str, pages: float
) -> None:
    """Against the CPU's image, which the oracle's tests hold against PEFT."""
    spec, packed, wanted = images(base, *made[name], pages=pages)
    device, row = Device(packed), SlotRow(spec, 256)
    used = 0
    for site in spec.lora_sites():
        at = row.sites[site.layer, site.site]
        own = wanted.sites.get((site.layer, site.site))
        vectors = None if wanted.extras is None else wanted.extras.vectors.get((site.layer, site.site))
        begin = 0
        for index, n in enumerate(site.out_features):
            a, b = torch.zeros(256, site.in_features), torch.zeros(n, 256)
            for block in range(at.blocks):
                part_a = device.at(at.a + index * at.blocks + block, (CHUNK_RANK, site.in_features), torch.float32)
                part_b = device.at(at.b + index * at.blocks + block, (n, CHUNK_RANK), torch.float32)
                assert (part_a is None) == (part_b is None)
                if part_a is not None and part_b is not None:
                    used += 2
                    a[block * CHUNK_RANK : (block + 1) * CHUNK_RANK] = part_a
                    b[:, block * CHUNK_RANK : (block + 1) * CHUNK_RANK] = part_b
            delta = float(packed.scales[at.scale + index]) * (b @ a)
            part = None if own is None else own.b[index]
            if own is None or part is None:
                assert not delta.any()
            else:
                torch.testing.assert_close(delta, part.T @ own.a[:, index], rtol=1e-4, atol=1e-5)
            for column, whole in ((at.gain, vectors and vectors.gain), (at.addend, vectors and vectors.addend)):
                found = device.at(column + index, (n,), torch.float32)
                if not isinstance(whole, torch.Tensor):
                    assert found is None
                else:
                    assert found is not None
                    assert torch.equal(found, whole[begin : begin + n])
            gains = vectors.in_gains if vectors is not None and vectors.in_gains else (None,) * len(site.slices)
            found = device.at(at.in_gain + index, (site.in_features,), torch.float32)
            in_gain = gains[index]
            assert (found is None) == (in_gain is None)
            assert found is None or in_gain is None or torch.equal(found, in_gain)
            begin += n
    for norm, column in row.norms.items():
        found = device.at(column, (spec.norms()[norm],), torch.float32)
        own_norm = None if wanted.extras is None else wanted.extras.norms.get(norm)
        assert (found is None) == (own_norm is None)
        assert found is None or own_norm is None or torch.equal(found, own_norm)
    assert used == 2 * sum(-(-module.rank // CHUNK_RANK) for module in made[name][1].modules.values())
    whole_matrices = wanted.extras is not None and (wanted.extras.embedding or wanted.extras.head) is not None
    assert (packed.extras is not None) == whole_matrices
    stated = extra_bytes(made[name][1], spec, packed.dtype.itemsize, chunked=True)
    assert packed.extra_bytes <= stated + ALIGN * len(list(packed.extras.tensors() if packed.extras else ()))
    if packed.extras is not None and wanted.extras is not None:
        assert (packed.extras.embedding is None) == (wanted.extras.embedding is None)
        assert packed.extras.vocabulary == wanted.extras.vocabulary
        check_embedding(packed.extras.embedding, wanted.extras.embedding)
        check_head(packed.extras.head, wanted.extras.head, plain=wanted.extras.vocabulary is None)


def check_head(packed: HeadExtras | ChunkedHead | None, wanted: HeadExtras | ChunkedHead | None, plain: bool) -> None:
    """In chunks where the kernels can add it to the base's."""
    assert (packed is None) == (wanted is None)
    if packed is None:
        return
    assert isinstance(wanted, HeadExtras)
    plain = plain and wanted.weight is None and wanted.rows is None and wanted.in_gain is None
    assert isinstance(packed, ChunkedHead) == plain
    names = ("gain", "addend") if plain else [one.name for one in fields(HeadExtras)]
    for name in names:
        found, want = getattr(packed, name), getattr(wanted, name)
        assert (found is None) == (want is None), name
        assert found is None or torch.equal(found, want)
    if plain:
        assert (packed.a is None) == (packed.b is None) == (wanted.a is None)
    if plain and packed.a is not None and packed.b is not None and wanted.a is not None and wanted.b is not None:
        rank, ids = wanted.b.shape
        a, b = packed.a.flatten(0, 1), packed.b.transpose(0, 1).flatten(1)
        assert packed.a[0].nbytes % ALIGN == packed.b[0].nbytes % ALIGN == 0
        assert torch.equal(a[:rank], wanted.a)
        assert torch.equal(b[:ids, :rank], wanted.b.T)
        assert not a[rank:].any()
        assert not b[:, rank:].any()
        assert not b[ids:].any()


def check_embedding(
    packed: EmbeddingExtras | ChunkedEmbedding | None, wanted: EmbeddingExtras | ChunkedEmbedding | None
) -> None:
    if wanted is None:
        return
    assert isinstance(packed, ChunkedEmbedding)
    assert isinstance(wanted, EmbeddingExtras)
    for name in ("weight", "gain", "rows", "row_of"):
        found, want = getattr(packed, name), getattr(wanted, name)
        assert (found is None) == (want is None)
        assert found is None or torch.equal(found.long() if name == "row_of" else found, want)
    assert (packed.a is None) == (wanted.a is None)
    if wanted.a is not None and wanted.b is not None:
        assert packed.a is not None
        assert packed.b is not None
        rank = wanted.a.shape[1]
        assert packed.a[0].nbytes % ALIGN == packed.b[0].nbytes % ALIGN == 0
        for chunks, matrix in ((packed.a, wanted.a), (packed.b, wanted.b.T)):
            flat = chunks.transpose(0, 1).flatten(1)
            assert torch.equal(flat[: len(matrix), :rank], matrix)
            assert not flat[:, rank:].any()
            assert not flat[len(matrix) :].any()


def test_in_sixteen_bits_each_number_is_rounded_once(base: Path, made: Mapping[str, tuple[Path, AdapterPlan]]) -> None:
    """The scale stays apart, in float32."""
    spec, packed, _ = images(base, *made["patterns"], dtype=torch.bfloat16)
    _, exact, _ = images(base, *made["patterns"])
    half, whole, row = Device(packed), Device(exact), SlotRow(spec, 256)
    for (layer, site), at in row.sites.items():
        width = next(s.in_features for s in spec.lora_sites() if (s.layer, s.site) == (layer, site))
        for column in range(at.a, at.a + at.slices * at.blocks):
            found = half.at(column, (CHUNK_RANK, width), torch.bfloat16)
            want = whole.at(column, (CHUNK_RANK, width), torch.float32)
            assert (found is None) == (want is None)
            assert found is None or want is None or torch.equal(found, want.bfloat16())
    assert (packed.scales == exact.scales).all()


def test_what_damages_a_page_changes_its_sum(base: Path, made: Mapping[str, tuple[Path, AdapterPlan]]) -> None:
    _, packed, _ = images(base, *made["patterns"])
    assert packed.intact()
    assert tuple(word_sums(packed.pages).tolist()) == packed.page_sums
    packed.pages[0, 5] ^= 1
    assert not packed.intact()
    assert tuple(word_sums(packed.pages).tolist()) != packed.page_sums


def test_a_rank_without_columns_is_refused(base: Path, made: Mapping[str, tuple[Path, AdapterPlan]]) -> None:
    spec = read_spec(base)
    with pytest.raises(AdapterLoadFailed, match="rank 256, over 16"):
        build_packed(*made["rank 256"], spec, layout_of(spec, rank=16), DIGEST)


def test_a_page_that_holds_no_chunk_is_refused(base: Path, made: Mapping[str, tuple[Path, AdapterPlan]]) -> None:
    spec = read_spec(base)
    with pytest.raises(AdapterLoadFailed, match="--page-tokens"):
        build_packed(*made["patterns"], spec, layout_of(spec, pages=0.5), DIGEST)


def test_a_value_beyond_float16_is_refused(
    base: Path, made: Mapping[str, tuple[Path, AdapterPlan]], tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    folder, plan = made["patterns"]
    tensors = load_file(folder / "adapter_model.safetensors")
    name = next(iter(tensors))
    tensors[name].flatten()[0] = 1e6
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    spec = read_spec(base)
    with pytest.raises(AdapterLoadFailed, match="outside the range"):
        build_packed(tmp_path, plan, spec, layout_of(spec, torch.float16), DIGEST)


def test_a_plan_of_another_base_is_refused(base: Path, made: Mapping[str, tuple[Path, AdapterPlan]]) -> None:
    folder, plan = made["patterns"]
    spec = read_spec(base)
    moved = replace(plan, modules={(layer + 9, name): one for (layer, name), one in plan.modules.items()})
    with pytest.raises(AdapterLoadFailed, match="have a place in the base"):
        build_packed(folder, moved, spec, layout_of(spec), DIGEST)


@given(st.lists(st.integers(1, 4096), max_size=80), st.sampled_from([4096, 5000, 8192]))
def test_pieces_never_overlap(sizes: list[int], page_bytes: int) -> None:
    places, count = place(sizes, page_bytes)
    taken: dict[int, list[tuple[int, int]]] = {}
    for size, (page, offset) in zip(sizes, places, strict=True):
        assert offset % ALIGN == 0
        assert 0 <= page < count
        assert offset + size <= page_bytes
        taken.setdefault(page, []).append((offset, offset + size))
    assert len(taken) == count
    for spans in taken.values():
        spans.sort()
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
    aligned = sum(-(-size // ALIGN) * ALIGN for size in sizes)
    assert count <= 2 * aligned / page_bytes + 1, "two pages that together fit in one"


def test_a_piece_larger_than_a_page_is_named() -> None:
    with pytest.raises(ValueError, match="a piece of 4097 bytes does not fit a page of 4096"):
        place([10, 4097], 4096)


class Locks:
    """What is locked, by address."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}

    def lock(self, address: int, size: int) -> None:
        assert address % 4096 == 0
        self.held[address] = size

    def unlock(self, address: int) -> None:
        ctypes.string_at(address, self.held.pop(address))  # it is still mapped

    def has(self, tensor: torch.Tensor) -> bool:
        first, last = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        return any(begin <= first and last <= begin + size for begin, size in self.held.items())


def test_all_that_is_copied_to_a_device_is_locked(base: Path, made: Mapping[str, tuple[Path, AdapterPlan]]) -> None:
    """Pages, embedding and head: as long as they are there, and no more than they take."""
    spec, locks = read_spec(base), Locks()
    layout = replace(layout_of(spec), locks=locks)
    for name in ("DoRA on everything", "whole matrices and norms"):
        packed = build_packed(*made[name], spec, layout, DIGEST, BaseTensors(base, spec, torch.float32))
        plain = build_packed(*made[name], spec, layout_of(spec), DIGEST, BaseTensors(base, spec, torch.float32))
        assert packed.extras is not None
        assert packed.checksum == plain.checksum
        copied = (packed.pages, *packed.extras.tensors())
        assert len(copied) > 2
        assert all(map(locks.has, copied))
        assert sum(locks.held.values()) == packed.nbytes
        del packed, copied
        assert locks.held == {}


def test_memory_that_cannot_be_locked_is_a_failed_load(
    base: Path, made: Mapping[str, tuple[Path, AdapterPlan]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cudart = SimpleNamespace(cudaHostRegister=lambda address, size, flags: 2)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    spec = read_spec(base)
    layout = replace(layout_of(spec), locks=CudaPageLocks())
    with pytest.raises(
        AdapterLoadFailed, match=r"bytes of host memory cannot be locked .*\(CUDA error 2\); lower tiers"
    ):
        build_packed(*made["patterns"], spec, layout, DIGEST, BaseTensors(base, spec, torch.float32))
