"""What a page of metrics says, read by Prometheus' own parser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families


@dataclass
class Scrape:
    """``values[name][labels]``: labels are sorted pairs, ``le`` too."""

    values: dict[str, dict[tuple[tuple[str, str], ...], float]] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> Scrape:
        """Fails where a series comes twice, as Prometheus does."""
        made = cls()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                series = made.values.setdefault(sample.name, {})
                labels = tuple(sorted(sample.labels.items()))
                assert labels not in series, f"{sample.name}{labels} comes twice"
                series[labels] = sample.value
        return made

    def one(self, name: str, **labels: str) -> float:
        return self.values[name][tuple(sorted(labels.items()))]

    def sum(self, name: str, **labels: str) -> float:
        """Over all series with these labels; 0 where there is none."""
        return sum(value for found, value in self.values.get(name, {}).items() if labels.items() <= dict(found).items())

    def by(self, name: str, label: str) -> dict[str, float]:
        return {dict(labels)[label]: value for labels, value in self.values.get(name, {}).items()}

    def buckets(self, name: str, **labels: str) -> list[int]:
        """Counts of each bucket alone."""
        found = [value for key, value in self.values[f"{name}_bucket"].items() if labels.items() <= dict(key).items()]
        return [int(b - a) for a, b in zip([0.0, *found], found, strict=False)]

    def series(self) -> Iterator[tuple[str, dict[str, str]]]:
        for name, found in self.values.items():
            yield from ((name, dict(labels)) for labels in found)


__all__ = ["Scrape"]
