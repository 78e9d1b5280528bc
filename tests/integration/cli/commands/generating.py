"""Models, and a generation."""

from __future__ import annotations

from lorry.api.v1 import generate_pb2 as pb
from tests.integration.cli.answers import MODEL, PIRATE, STREAM
from tests.integration.cli.commands.case import case

CASES = [
    case(
        "models",
        "ListModels",
        pb.ListModelsResponse(models=[MODEL]),
        {"pageSize": 1000},
        [PIRATE, "@prod"],
        (["models", 0, "version"], "3"),
    ),
    case(
        "generate --model pirate@prod hi --stop x --stop yy --min-tokens 1 --top-p 0.5 --top-k 9 --sticky-key me"
        " --label team=a --label b=",
        "GenerateStream",
        STREAM,
        {
            "model": f"{PIRATE}@prod",
            "chat": {"messages": [{"role": "user", "content": "hi"}]},
            "stickyKey": "me",
            "labels": {"team": "a", "b": ""},
            "sampling": {"temperature": 0.0, "topP": 0.5, "topK": 9, "n": 1},
            "stopping": {"maxTokens": 128, "minTokens": 1, "stop": ["x", "yy"]},
            "output": {},
            "coldLoad": "COLD_LOAD_WAIT",
        },
        "ahoy\n",
        (["choices", 0, "finishReason"], "FINISH_REASON_STOP"),
    ),
]
