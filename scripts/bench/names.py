"""Names of very large releases: listing, first stat, time to mount, and the memory that they take."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from catalog.manifest import Manifest
from catalog.names import parse_release
from mountd.manifest_check import check_manifest
from scripts.bench.host import drop_page_cache, private_bytes
from scripts.bench.shelves import daemon_pids, folder_of
from scripts.bench.standin import BigRelease, StandinShelf, standin_shelf
from scripts.lib.synthetic_manifest import SyntheticRelease, make_release

RELEASE = "datasets/bench/names@1.0"
MILLION = 1_000_000
SHAPES = {"1,000,000 files in one folder": (MILLION, 1), "1,000,000 files in 100 folders": (MILLION, 100)}
HUGE = (10 * MILLION, 1000)


def measure(home: Path, repeat: int) -> dict[str, Any]:
    """``find``, first ``stat`` and mounting of a million and of ten million names."""
    result: dict[str, Any] = {}
    for name, (files, folders) in SHAPES.items():
        with _names(home / f"names-{folders}", files, folders) as names:
            result[name] = {
                "find_s": names.median(names.find, repeat),
                "find_with_sizes_s": names.median(lambda names=names: names.find("-size", "+0"), repeat),
                "first_stat_of_each_s": names.median(names.stat_each, repeat),
            }
            print(f"bench_mount: {name}: {result[name]}", file=sys.stderr, flush=True)
    with _names(home / "names-huge", *HUGE) as names:
        warm, cold = [], []
        for _ in range(repeat):
            drop_page_cache()
            for found in (cold, warm):
                found.append(names.mount())
                names.umount()
        names.mount()
        find_s = names.find()
        result["10,000,000 files in 1,000 folders"] = {
            "manifest_gb": round(names.made.manifest.stat().st_size / 1e9, 2),
            "first_verification_s_per_gb": round(names.verification_s_per_gb(), 2),
            "mount_to_first_name_s": round(statistics.median(warm), 2),
            "mount_to_first_name_page_cache_dropped_s": round(statistics.median(cold), 2),
            "find_s": round(find_s, 1),
            "private_memory_mb": round(private_bytes(names.pids()) / 1e6),
        }
    return result


@contextmanager
def _names(home: Path, files: int, folders: int) -> Iterator[_Names]:
    home.mkdir()
    made = make_release(home, files, folders)
    release = BigRelease(parse_release(RELEASE), made.manifest, made.digest, range(files), made.size_bytes)
    try:
        with standin_shelf(home / "shelf", [release]) as shelf:
            yield _Names(shelf, made)
    finally:
        shutil.rmtree(home)


class _Names:
    """A release of names alone, mounted from a cache that has its verified manifest."""

    def __init__(self, shelf: StandinShelf, made: SyntheticRelease) -> None:
        self._shelf = shelf
        self._files = made.files
        self.made = made
        self.mount(patience_s=300)  # brings the manifest and verifies it
        self.umount()

    def mount(self, patience_s: float = 10) -> float:
        """Seconds from the daemon's start to the first name of the release, command and interpreter included."""
        started = time.perf_counter()
        self._point = self._shelf.mount(OPENSHELF_MATERIALISE="no")
        self._folder = folder_of(self._point, RELEASE)
        while not self._folder.exists():
            if time.perf_counter() - started > patience_s:
                raise RuntimeError(f"{RELEASE} was not shown within {patience_s} s")
            time.sleep(0.01)
        with os.scandir(self._folder) as entries:
            next(entries)
        return time.perf_counter() - started

    def umount(self) -> None:
        self._shelf.umount(self._point)

    def pids(self) -> list[int]:
        return daemon_pids(self._shelf, self._point)

    def median(self, measure: Callable[[], float], repeat: int) -> float:
        """The median of ``repeat`` measurements, before each of which the kernel has seen no name."""
        found = []
        for _ in range(repeat):
            drop_page_cache()
            self.mount()
            found.append(measure())
            self.umount()
        return round(statistics.median(found), 2)

    def find(self, *conditions: str) -> float:
        """Seconds of ``find -type f`` over all files, which meet the ``conditions``."""
        started = time.perf_counter()
        found = subprocess.run(
            ["find", self._folder, "-name", "*.jpg", "-type", "f", *conditions], stdout=subprocess.PIPE, check=True
        )
        took = time.perf_counter() - started
        assert found.stdout.count(b"\n") == self._files
        return took

    def stat_each(self) -> float:
        """Seconds to stat every file by its path, none of which the kernel has seen."""
        names = [
            os.fsencode(self._folder / path) for batch in Manifest.open(self.made.manifest).batches()
            for path in batch.column("path").to_pylist()
        ]  # fmt: skip
        started = time.perf_counter()
        for name in names:
            os.stat(name)  # noqa: PTH116
        return time.perf_counter() - started

    def verification_s_per_gb(self) -> float:
        """Seconds to verify a manifest for the first time (digest and every row), a GB of it."""
        drop_page_cache()
        started = time.perf_counter()
        check_manifest(Manifest.open_verified(self.made.manifest, bytes.fromhex(self.made.digest)), RELEASE)
        return (time.perf_counter() - started) / (self.made.manifest.stat().st_size / 1e9)
