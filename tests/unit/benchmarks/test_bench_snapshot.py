"""What the benchmark of the snapshot says, at a size at which times say nothing."""

from __future__ import annotations

import bench_snapshot


def test_the_benchmark_measures_what_it_says() -> None:
    result = bench_snapshot.run([(40, 5), (80, 10)], deltas=20)
    small, large = result["cells"]
    assert result["database"] == "sqlite"
    assert [(cell["adapters"], cell["tenants"]) for cell in (small, large)] == [(40, 5), (80, 10)]
    for cell in (small, large):
        for name in ("apply_ms", "refresh_ms", "check_us"):
            assert 0 < cell[f"{name}_p50"] <= cell[f"{name}_p99"] <= cell[f"{name}_max"]
        assert all(cell[f"{kind}_us"] > 0 for kind in ("unknown", "never_granted", "deleted"))
        assert cell["load_s"] > 0
        assert cell["load_gap_ms"] >= 0
    assert set(small["of_smallest"].values()) == {1.0}
    assert large["of_smallest"]["apply_ms_p50"] == large["apply_ms_p50"] / small["apply_ms_p50"]
