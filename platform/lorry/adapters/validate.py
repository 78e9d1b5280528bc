"""Whether the platform can apply all of an adapter, with each check's outcome. No torch, but for the probe.

Nothing is applied in part: one failed check refuses the adapter. A report that is ``ok`` carries the plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from lorry.adapters.config.read import CONFIG_NAME, AdapterConfig, ConfigRefused, read_config
from lorry.adapters.copies import check_copies
from lorry.adapters.directory import check_files
from lorry.adapters.extra_bytes import check_extras
from lorry.adapters.header import HeaderLimits, HeaderRefused
from lorry.adapters.names import BaseModules, place_tensors
from lorry.adapters.plan import AdapterPlan
from lorry.adapters.report import Accepted, Check, ValidationReport
from lorry.adapters.rows import base_hint, planned_rows
from lorry.adapters.shards import WEIGHTS_NAME, WeightFiles, open_weights
from lorry.adapters.tensors import Planned
from lorry.adapters.text_side import check_text
from lorry.adapters.values import check_values
from lorry.adapters.watch import Watch
from lorry.layers.spec import DecoderSpec

_NOBODY = Watch()


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on an adapter; ``max_rank`` is the largest rank of a module. ``max_extra_bytes``: the most that it may
    take on the device beside its rank rows (None: not bounded here), whose whole matrices have elements of
    ``weight_bytes``, and whose LoRA on embedding and head is in chunks of them where ``chunked_extras``."""

    max_rank: int = 256
    max_extra_bytes: int | None = None
    weight_bytes: int = 4
    chunked_extras: bool = False
    max_added_tokens: int = 65_536
    """Rows of embedding and head beyond the base's: a sparse file can state any number of them."""

    max_config_bytes: int = 256 << 10
    max_files: int = 32
    header: HeaderLimits = field(default_factory=HeaderLimits)


def validate_directory(
    path: Path,
    spec: DecoderSpec,
    limits: Limits = Limits(),
    base_name: str | None = None,
    base_dir: Path | None = None,
    watch: Watch = _NOBODY,
    probe: bool = True,
) -> ValidationReport:
    """Checks everything that can be checked, so that the report names all faults at once; values, copies and text only
    where all before them passed, and then, unless ``probe`` is false, the platform's arithmetic.

    ``path`` holds one adapter version's files and nothing else, and must not change meanwhile. ``base_name`` is what
    the config's own hint is compared with. ``base_dir`` is the base's folder; without it a check that compares with the
    base's files fails, for want of them. Raises nothing for a bad adapter: see ``report.ok``.
    """
    run = _Run(path, spec, limits, base_name, base_dir, watch)
    plan = run.plan(probe)
    if plan is None or run.failed:
        return ValidationReport(tuple(run.checks), None)
    return ValidationReport(tuple(run.checks), Accepted.of(plan), plan)


class _Run:
    """One validation: its rows so far, each told to ``watch`` as it comes."""

    def __init__(
        self, path: Path, spec: DecoderSpec, limits: Limits, base_name: str | None, base_dir: Path | None, watch: Watch
    ) -> None:
        self.path = path
        self.spec = spec
        self.limits = limits
        self.base_name = base_name
        self.base_dir = base_dir
        self.watch = watch
        self.checks: list[Check] = []

    @property
    def failed(self) -> bool:
        return any(check.outcome == "fail" for check in self.checks)

    def add(self, rows: Iterable[Check]) -> None:
        for row in rows:
            self.checks.append(row)
            self.watch.row(row)

    def plan(self, probe: bool) -> AdapterPlan | None:
        self.add(check_files(self.path, self.limits.max_files, CONFIG_NAME))
        config = self._config()
        try:
            with open_weights(self.path, self.limits.header) as weights:
                planned = self._structure(weights, config)
                if planned is None or self.failed:
                    return None
                plan = self._content(weights, planned)
        except HeaderRefused as refused:
            self.add([Check.fail(f"weights.{refused.field}", refused.message, refused.value, refused.limit)])
            return None
        if probe and not self.failed:
            self.watch.stage("probe")
            self.add([self._probe(plan)])
        return plan

    def _config(self) -> AdapterConfig | None:
        try:
            config = read_config(self.path / CONFIG_NAME, self.limits.max_config_bytes, self.spec.causal_lm)
        except ConfigRefused as refused:
            self.add(Check.fail(f"config.{p.field}", p.message, p.value, p.limit) for p in refused.problems)
            return None
        self.add([Check("config", "pass", f"{config.peft_type}: every field is served or harmless")])
        return config

    def _structure(self, weights: WeightFiles, config: AdapterConfig | None) -> Planned | None:
        count, most = len(weights.tensors), self.limits.header.tensors
        files = f" in {len(weights.names)} shards" if len(weights.names) > 1 else ""
        self.add([Check("weights.header", "pass", f"{count} tensors{files}", count, most)])
        base = BaseModules.of(self.spec)
        parts, rows = place_tensors(weights.tensors, base)
        self.add(rows)
        if config is None:
            return None
        self.add([base_hint(config, self.spec, self.base_name)])
        limits = self.limits
        planned, rows = planned_rows(weights, parts, base, config, self.spec, limits.max_rank, limits.max_added_tokens)
        self.add(rows)
        if planned is not None and (extras := self._extras(planned.plan)) is not None and extras.outcome == "fail":
            self.add([extras])  # before a byte of what takes so much is read
        return planned

    def _extras(self, plan: AdapterPlan) -> Check | None:
        limits = self.limits
        return check_extras(plan, self.spec, limits.weight_bytes, limits.max_extra_bytes, chunked=limits.chunked_extras)

    def _content(self, weights: WeightFiles, planned: Planned) -> AdapterPlan:
        self.watch.stage("content")
        plan, rows = check_copies(weights, planned, self.spec, self.base_dir)
        self.add(rows)
        extras = self._extras(plan)  # a rounded copy is among them by now
        self.add([extras] if extras is not None else [])
        self.add(check_values(weights, plan))
        text, row = check_text(self.path, self.spec, self.base_dir, plan.vocabulary or self.spec.vocabulary)
        self.add([row] if row is not None else [])
        return replace(plan, text=text)

    def _probe(self, plan: AdapterPlan) -> Check:
        import torch

        from lorry.adapters.image.source import no_base
        from lorry.adapters.probe import probe
        from lorry.layers.base_tensors import BaseTensors

        base = no_base if self.base_dir is None else BaseTensors(self.base_dir, self.spec, torch.float32)
        return probe(self.path, plan, self.spec, base)


__all__ = ["WEIGHTS_NAME", "Limits", "validate_directory"]
