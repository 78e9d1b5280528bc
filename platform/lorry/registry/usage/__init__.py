"""The usage ledger: one row per request that ran."""
