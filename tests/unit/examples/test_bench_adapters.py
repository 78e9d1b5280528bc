import runpy
from collections.abc import Callable
from pathlib import Path

from lorry.adapters.manifest import scan_directory
from lorry.adapters.validate import validate_directory
from lorry.layers.sites import SLICE_SITE
from tests.unit.examples.smollm2 import SMOLLM2

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
write_random_adapter: Callable[..., Path] = runpy.run_path(str(BENCHMARKS / "bench_adapters.py"))[
    "write_random_adapter"
]


def test_covers_all_seven_projections_of_every_layer(tmp_path: Path) -> None:
    report = validate_directory(write_random_adapter(tmp_path / "a", SMOLLM2, seed=0, rank=2), SMOLLM2)
    assert report.plan is not None, report.error()
    assert len(report.plan.modules) == len(SLICE_SITE) * SMOLLM2.layers
    assert report.rank == 2


def test_equal_seeds_give_equal_bytes_and_others_do_not(tmp_path: Path) -> None:
    first, again, other = (
        scan_directory(write_random_adapter(tmp_path / name, SMOLLM2, seed=seed, rank=1))
        for name, seed in (("first", 3), ("again", 3), ("other", 4))
    )
    assert first == again != other
