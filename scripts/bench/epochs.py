"""Training loaders: an epoch from the mount, warm, beside the same files in a plain folder."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from scripts.bench.host import in_turn
from scripts.bench.shelves import folder_of, fresh_mount, publish
from tests.e2e.shelf import Shelf

RELEASE = "datasets/bench/shards@1.0"
LOADERS = {"parquet": "Hugging Face datasets", "tar": "WebDataset", "mds": "MosaicML streaming"}
_LOADER = Path(__file__).with_name("loader.py")


def measure(shelf: Shelf, home: Path, python: Path, mib: int, repeat: int) -> dict[str, Any]:
    """Seconds of one epoch of each loader from the folder and from the mount; ``python`` has the loaders."""
    native = home / "shards"
    _run(python, "write", native, mib)
    files = {str(path.relative_to(native)): path for path in native.rglob("*") if path.is_file()}
    publish(shelf, RELEASE, files)
    result: dict[str, Any] = {"mib": mib}
    for tier, env in (("passthrough", {"OPENSHELF_MATERIALISE": "no"}), ("materialised", {})):
        with fresh_mount(shelf, f"shards-{tier}", **env) as point:
            shelf.ok(None, "warm", point, RELEASE, "--wait")
            folder = folder_of(point, RELEASE)
            for kind, name in LOADERS.items():
                seconds = in_turn(
                    {
                        "native": lambda kind=kind: _seconds(python, kind, native / kind),
                        "mount": lambda kind=kind, folder=folder: _seconds(python, kind, folder / kind),
                    },
                    max(1, repeat // 2),
                )
                result.setdefault(name, {})[tier] = {
                    "native_s": round(seconds["native"], 2),
                    "mount_s": round(seconds["mount"], 2),
                    "ratio": round(seconds["native"] / seconds["mount"], 3),
                }
    return result


def _seconds(python: Path, kind: str, folder: Path) -> float:
    return float(json.loads(_run(python, kind, folder).splitlines()[-1])["seconds"])


def _run(python: Path, *arguments: object) -> str:
    done = subprocess.run([python, _LOADER, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the loader failed: {done.stderr[-2000:]}")
    return done.stdout
