"""What is drawn at random has every field that is served."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as draw_from
from hypothesis import strategies as st

from lorry.adapters.config.fields import FIELDS, PeftType
from tests.oracle.combinations import ia3_kinds, lora_kinds
from tests.support.zoo import Kind

WRITTEN_BY_PEFT = {"peft_type", "base_model_name_or_path", "auto_mapping"}
DRAWS: Mapping[PeftType, st.SearchStrategy[Kind]] = {"LORA": lora_kinds(), "IA3": ia3_kinds()}


@pytest.mark.parametrize("peft_type", DRAWS)
def test_every_served_field_is_drawn(peft_type: PeftType) -> None:
    drawn = set[str]()

    @draw_from(0)
    @settings(
        max_examples=200,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(DRAWS[peft_type])
    def note(kind: Kind) -> None:
        drawn.update(field for field, value in kind.config.items() if value is not None)

    note()
    served = {field for field, rule in FIELDS[peft_type].items() if rule.treatment == "served"}
    assert served - drawn == WRITTEN_BY_PEFT
