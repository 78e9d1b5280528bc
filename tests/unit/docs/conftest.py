"""What writes the documentation is a program beside the packages: importable here as it is when it is run."""

import sys
from pathlib import Path

DOCS = str(Path(__file__).parents[3] / "docs")
if DOCS not in sys.path:
    sys.path.append(DOCS)
