"""The guards that ``make mutants`` takes out, one at a time, and the tests that hold them."""

from __future__ import annotations

from tests.mutants import (
    accounts,
    client,
    copies,
    device,
    files,
    forms,
    front,
    hotpath,
    http,
    kernels_attention,
    kernels_fused,
    kernels_gate,
    kernels_lora,
    limits,
    memory,
    metrics,
    names,
    paged,
    records,
    repeats,
    security,
    tenancy,
    texts,
    transport,
    watching,
    web,
)
from tests.mutants.guard import Guard

GUARDS: tuple[Guard, ...] = (
    *files.GUARDS,
    *front.GUARDS,
    *names.GUARDS,
    *device.GUARDS,
    *memory.GUARDS,
    *texts.GUARDS,
    *kernels_attention.GUARDS,
    *kernels_fused.GUARDS,
    *kernels_gate.GUARDS,
    *kernels_lora.GUARDS,
    *paged.GUARDS,
    *forms.GUARDS,
    *client.GUARDS,
    *limits.GUARDS,
    *tenancy.GUARDS,
    *accounts.GUARDS,
    *records.GUARDS,
    *http.GUARDS,
    *hotpath.GUARDS,
    *metrics.GUARDS,
    *web.GUARDS,
    *watching.GUARDS,
    *copies.GUARDS,
    *security.GUARDS,
    *repeats.GUARDS,
    *transport.GUARDS,
)

__all__ = ["GUARDS", "Guard"]
