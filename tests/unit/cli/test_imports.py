"""`pip install lorry` without extras has the command line: what talks to a platform needs no package of a server's."""

from __future__ import annotations

import subprocess
import sys

import pytest

SERVER = (
    *("torch", "triton", "sqlalchemy", "alembic", "numpy", "safetensors", "tokenizers", "boto3", "starlette"),
    *("uvicorn", "jinja2", "structlog", "grpc_health", "grpc_reflection", "psycopg", "aiosqlite"),
)
OWN = ("lorry.registry", "lorry.gateway", "lorry.engine", "lorry.scheduler", "lorry_admin", "lorry_kernels")
PROGRAM = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {server} or name in {own}:
            raise ModuleNotFoundError(name + " belongs to a server", name=name)

sys.meta_path.insert(0, Refuse())
from lorry.cli import main
try:
    status = main({argv})
except SystemExit as left:
    status = left.code or 0
assert not [name for name in {server} if name in sys.modules]
sys.exit(status)
"""


def run(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(server=SERVER, own=OWN, argv=list(argv))
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment or None)


def test_help_of_everything_needs_no_server() -> None:
    done = run("--help")
    assert done.returncode == 0, done.stderr
    for word in ("login", "generate", "adapters", "doctor", "serve"):
        assert word in done.stdout


@pytest.mark.parametrize(
    "line",
    ["generate --model models/m hi", "models", "adapters push a . --base models/m", "adapters list", "usage export"],
)
def test_remote_commands_get_as_far_as_the_wire_without_a_server(line: str) -> None:
    settings = {"LORRY_API_KEY": "k", "LORRY_ADDRESS": "127.0.0.1:1", "LORRY_TENANT": "t", "LORRY_PROFILE": "/none"}
    done = run(*line.split(), "--retries", "0", **settings)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("lorry: UNAVAILABLE UNAVAILABLE: "), done.stderr


def test_the_guard_itself_refuses() -> None:
    done = run("migrate", "--url", "sqlite://")
    assert done.returncode == 1
    assert "belongs to a server" in done.stderr


def test_a_command_that_needs_the_server_says_how_to_get_it() -> None:
    done = run("bases", "create", "smol", ".", LORRY_API_KEY="k", LORRY_ADDRESS="127.0.0.1:1", LORRY_PROFILE="/none")
    assert (done.returncode, done.stderr) == (
        1,
        "lorry: tokenizers is not installed; this command needs more than the client: "
        "pip install 'lorry[server]', for demo and model 'lorry[server,demo]'\n",
    )
