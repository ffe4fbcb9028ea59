"""What a catalog imports of this package must not need Hyperscan, numpy, pyarrow's compute or YAML."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module",
    ["compliance.licences", "compliance.ledger", "compliance.policy", "compliance.report", "compliance.finding_counts"],
)
def test_it_imports_without_what_only_ingest_has(module: str) -> None:
    heavy = ("hyperscan", "numpy", "pyarrow", "yaml", "fastapi", "pydantic")
    code = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
