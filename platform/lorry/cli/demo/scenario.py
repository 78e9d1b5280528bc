"""Who is in the demo and what they ask."""

from __future__ import annotations

from dataclasses import dataclass

BASE = "smollm2-135m-instruct"
BASE_MODEL = f"models/{BASE}"
MAX_TOKENS = 40


@dataclass(frozen=True, slots=True)
class Tenant:
    """``adapters`` are folders of examples/adapters, each this tenant's own."""

    name: str
    display_name: str
    adapters: tuple[str, ...]

    def adapter(self, name: str) -> str:
        return f"tenants/{self.name}/adapters/{name}"

    @property
    def models(self) -> tuple[str, ...]:
        return (BASE_MODEL, *(self.adapter(name) for name in self.adapters))


TENANTS = (
    Tenant("acme", "Acme Data", ("json", "bullets")),
    Tenant("globex", "Globex Games", ("pirate", "cheerful")),
    Tenant("initech", "Initech Web", ("html", "telegram")),
)

QUESTIONS = (
    "What is the capital of France?",
    "Why do birds sing?",
)


@dataclass(frozen=True, slots=True)
class Ask:
    tenant: Tenant
    model: str
    question: str


def first_wave() -> list[Ask]:
    """Every tenant with each of its adapters and the base, interleaved, so that neighbours differ."""
    by_tenant = [
        [Ask(tenant, model, question) for question in QUESTIONS for model in tenant.models][:5] for tenant in TENANTS
    ]
    return [ask for row in zip(*by_tenant, strict=True) for ask in row]


def second_wave() -> list[Ask]:
    """The same question to every adapter once more, now that all of them are on the device."""
    return [Ask(tenant, tenant.adapter(name), QUESTIONS[0]) for tenant in TENANTS for name in tenant.adapters]


__all__ = ["BASE", "BASE_MODEL", "MAX_TOKENS", "QUESTIONS", "TENANTS", "Ask", "Tenant", "first_wave", "second_wave"]
