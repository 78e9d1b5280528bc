"""Our corpus of hostile adapters: kinds of attack, each with variations drawn from a seed, each refused by name."""

from tests.unit.adapters.hostile.configs import CONFIGS
from tests.unit.adapters.hostile.files import FILES
from tests.unit.adapters.hostile.headers import HEADERS
from tests.unit.adapters.hostile.kinds import BASE_CONFIG, Kind, write_good
from tests.unit.adapters.hostile.shards import KINDS as SHARDED
from tests.unit.adapters.hostile.tensors import TENSORS
from tests.unit.adapters.hostile.texts import TEXTS

CORPUS: dict[str, Kind] = {kind.name: kind for kind in (*FILES, *HEADERS, *TENSORS, *CONFIGS, *SHARDED, *TEXTS)}

__all__ = ["BASE_CONFIG", "CORPUS", "Kind", "write_good"]
