"""Tiles and launches by card, op, K, N, rank bucket and phase. No torch, no Triton, except in ``refresh``."""

from lorry_kernels.tuning.configs import AttentionConfig, Config, ExpandConfig, ShrinkConfig
from lorry_kernels.tuning.rows import RANK_BUCKETS, Phase, Row, rank_bucket
from lorry_kernels.tuning.table import lookup, trial

__all__ = [
    "RANK_BUCKETS",
    "AttentionConfig",
    "Config",
    "ExpandConfig",
    "Phase",
    "Row",
    "ShrinkConfig",
    "lookup",
    "rank_bucket",
    "trial",
]
