"""What the extractor's process does without."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
import pyarrow as pa
from cdc_core.operations.extract.process_memory import limit_memory
limit_memory()
pa.array([1])
assert "pandas" not in sys.modules
assert pa.table({"a": [1]}).to_pandas()["a"].tolist() == [1]
import pandas as pd
assert pa.array(pd.Series([1, None])).to_pylist() == [1.0, None]
limit_memory()
"""


def test_an_extractor_never_loads_pandas_and_who_wants_it_later_gets_it():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)
