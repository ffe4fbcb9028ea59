"""The real public files that lie beside the checkout; tests that need them skip, saying so, where they are absent."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARED_DATA = ROOT.parent / "shared" / "data"


def shared(*parts: str) -> Path:
    """The path of a shared file or folder, or a skip that names it."""
    path = SHARED_DATA.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"shared data is absent: {'/'.join(parts)}")
    return path
