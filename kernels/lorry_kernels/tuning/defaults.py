"""Configurations that compile without spills on every card that is shipped for. Starting points: nothing here was
measured; ``python -m lorry_kernels.tuning.refresh`` writes what is, and that goes first."""

from __future__ import annotations

from lorry_kernels.ops.launch import Launch
from lorry_kernels.tuning.configs import AttentionConfig, ExpandConfig, ShrinkConfig
from lorry_kernels.tuning.rows import Row

DEFAULTS: tuple[Row, ...] = (
    #   cards  op           phase      rank  K     N
    # A limit on registers keeps ptxas from spilling two of them to fit a fifth program; on sm_90 it is the limit that
    # makes it spill two, where a part of K ends inside a step.
    Row("sm", "shrink", "decode", 16, None, None, ShrinkConfig(256, 1, 16, Launch(4, 4, 128), 4)),
    Row("sm_90", "shrink", "decode", 16, None, None, ShrinkConfig(256, 1, 16, Launch(4, 4), 4)),
    Row("sm", "shrink", "decode", 1024, None, None, ShrinkConfig(64, 4, 16, Launch(4, 5, 128), 4)),
    Row("sm", "shrink", "prefill", 256, None, None, ShrinkConfig(128, 4, 1, Launch(4, 3), 2)),
    Row("sm", "shrink", "prefill", 1024, None, None, ShrinkConfig(128, 8, 1, Launch(8, 3), 2)),
    Row("sm_8", "shrink", "prefill", 256, None, None, ShrinkConfig(64, 4, 1, Launch(4, 3), 2)),
    Row("sm_8", "shrink", "prefill", 1024, None, None, ShrinkConfig(64, 8, 1, Launch(8, 3), 2)),
    Row("sm", "expand", "decode", 16, None, None, ExpandConfig(256, 1, Launch(4, 2), 6)),
    Row("sm", "expand", "decode", 1024, None, None, ExpandConfig(128, 4, Launch(4, 2), 6)),
    Row("sm", "expand", "prefill", 16, None, None, ExpandConfig(128, 1, Launch(4, 2), 2)),
    Row("sm", "expand", "prefill", 1024, None, None, ExpandConfig(64, 4, Launch(8, 2), 2)),
    # Keys and values of each stage lie in shared memory; a prefill block's sums, rows x head size, in registers, before
    # sm_90 its queries too.
    Row("sm", "attention", "decode", 0, 64, None, AttentionConfig(16, 64, Launch(4, 3), 4)),
    Row("sm", "attention", "decode", 0, 128, None, AttentionConfig(16, 64, Launch(4, 3), 3)),
    Row("sm_8", "attention", "decode", 0, 64, None, AttentionConfig(16, 64, Launch(4, 3), 4)),
    Row("sm_8", "attention", "decode", 0, 128, None, AttentionConfig(16, 64, Launch(4, 3), 2)),
    Row("sm", "attention", "decode", 0, None, None, AttentionConfig(16, 32, Launch(4, 3), 2)),
    Row("sm", "attention", "prefill", 0, 64, None, AttentionConfig(128, 64, Launch(8, 3), 1)),
    Row("sm", "attention", "prefill", 0, 128, None, AttentionConfig(128, 64, Launch(8, 3), 1)),
    Row("sm", "attention", "prefill", 0, None, None, AttentionConfig(128, 32, Launch(8, 2), 1)),
    Row("sm_8", "attention", "prefill", 0, 64, None, AttentionConfig(128, 64, Launch(8, 3), 1)),
    Row("sm_8", "attention", "prefill", 0, 128, None, AttentionConfig(128, 32, Launch(8, 3), 1)),
    Row("sm_8", "attention", "prefill", 0, None, None, AttentionConfig(64, 32, Launch(8, 2), 1)),
    # 64 KiB of LDS: fewer stages, smaller steps. Expand: the pipeliner loses the offsets' alignment in what it peels.
    Row("gfx", "shrink", "decode", 16, None, None, ShrinkConfig(256, 1, 8, Launch(4, 2), 3)),
    Row("gfx", "shrink", "decode", 1024, None, None, ShrinkConfig(128, 4, 8, Launch(4, 2), 3)),
    Row("gfx", "shrink", "prefill", 16, None, None, ShrinkConfig(128, 1, 1, Launch(4, 2), 2)),
    Row("gfx", "shrink", "prefill", 1024, None, None, ShrinkConfig(64, 4, 1, Launch(4, 2), 2)),
    Row("gfx", "expand", "decode", 16, None, None, ExpandConfig(256, 1, Launch(4, 1), 4)),
    Row("gfx", "expand", "decode", 1024, None, None, ExpandConfig(128, 2, Launch(4, 1), 4)),
    Row("gfx", "expand", "prefill", 16, None, None, ExpandConfig(128, 1, Launch(4, 1), 2)),
    Row("gfx", "expand", "prefill", 1024, None, None, ExpandConfig(64, 4, Launch(4, 1), 2)),
    Row("gfx", "attention", "decode", 0, 128, None, AttentionConfig(16, 64, Launch(4, 2), 2)),
    Row("gfx", "attention", "decode", 0, None, None, AttentionConfig(16, 32, Launch(4, 2), 2)),
    Row("gfx", "attention", "prefill", 0, 128, None, AttentionConfig(128, 64, Launch(4, 1), 1)),
    Row("gfx", "attention", "prefill", 0, None, None, AttentionConfig(64, 32, Launch(4, 1), 1)),
)

__all__ = ["DEFAULTS"]
