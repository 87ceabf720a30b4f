"""Every miniature release below one folder, by the name of its benchmark: `python -m tests.support.miniatures DIR`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.miniatures import miniatures

for name, module in miniatures().items():
    print(name, module.make(Path(sys.argv[1]) / name))
