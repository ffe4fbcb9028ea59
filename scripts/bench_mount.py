"""The mount beside the native disk, rclone mount and s3fs, in one run; prints JSON.

Everything is started here and ended here: an S3 server, a catalog with its objects there, the mounts. Figures are
medians over the repetitions; compare the ratios, absolute values depend on the machine. Needs root (mounts, dropping
the page cache).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.bench import epochs, large, names, small
from tests.e2e.shelf import running_shelf
from tests.support.s3_server import BUCKET, S3Server

PARTS = ("large", "small", "names", "loaders")


def run(arguments: argparse.Namespace, home: Path) -> dict[str, Any]:
    """The parts that were asked for."""
    result: dict[str, Any] = {"kernel": os.uname().release, "cores": os.cpu_count(), "repeat": arguments.repeat}
    with ExitStack() as stack:
        server = stack.enter_context(S3Server.start(home / "s3"))
        shelf = stack.enter_context(
            running_shelf(home / "shelf", objects=f"s3://{BUCKET}/o", environment=server.environment())
        )
        steps = {
            "large": lambda: large.measure(shelf, server, home, arguments.size_mib, arguments.repeat),
            "small": lambda: small.measure(server, home, arguments.files, arguments.repeat),
            "names": lambda: names.measure(home, arguments.repeat),
            "loaders": lambda: epochs.measure(shelf, home, arguments.loaders, arguments.shards_mib, arguments.repeat),
        }
        for part in arguments.part:
            started = time.monotonic()
            print(f"bench_mount: {part} …", file=sys.stderr, flush=True)
            result[part] = steps[part]()
            print(f"bench_mount: {part} took {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench_mount", description=__doc__.split("\n")[0])
    parser.add_argument("--part", action="append", choices=PARTS, help="what to measure; default: all that is possible")
    parser.add_argument("--size-mib", type=int, default=1024, help="size of the large file")
    parser.add_argument("--files", type=int, default=100_000, help="number of small files")
    parser.add_argument("--shards-mib", type=int, default=512, help="size of each loader's shards")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="a folder on the disk to measure")
    parser.add_argument("--loaders", type=Path, help="a Python with datasets, webdataset and mosaicml-streaming")
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the output is always JSON")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("bench_mount: run it as root; it mounts and drops the page cache.", file=sys.stderr)
        return 2
    arguments.part = arguments.part or [part for part in PARTS if part != "loaders" or arguments.loaders]
    if "loaders" in arguments.part and not arguments.loaders:
        parser.error("the part loaders needs --loaders PYTHON")
    home = Path(tempfile.mkdtemp(prefix="openshelf-bench-", dir=arguments.folder))
    try:
        print(json.dumps(run(arguments, home), indent=2))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
