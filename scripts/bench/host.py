"""What every benchmark needs of the host: cold caches, processor time, readers, and two sides measured in turn."""

from __future__ import annotations

import mmap
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

BLOCK = 1 << 20
TOUCHED_BYTES = 3 << 29
Measure = Callable[[], float]


def drop_page_cache() -> None:
    """Write what is dirty, then forget pages, dentries and inodes; memory is ready for whoever reads next.

    A virtual machine gives free memory back to its host, and pays up to 3 s a GB when it takes it again. Without this,
    whoever reads first pays, ten times as much as for the reading itself.
    """
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")
    touch_memory()


def touch_memory() -> None:
    """Take :data:`TOUCHED_BYTES` of memory and free them again."""
    with mmap.mmap(-1, TOUCHED_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for page in range(0, TOUCHED_BYTES, mmap.PAGESIZE):
            memory[page] = 1


def sequential_mb_s(path: Path) -> float:
    """MB/s of reading ``path`` once in 1 MiB pieces."""
    buffer = bytearray(BLOCK)
    total, started = 0, time.perf_counter()
    with path.open("rb", buffering=0) as source:
        while count := source.readinto(buffer):
            total += count
    return total / (time.perf_counter() - started) / 1e6


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system seconds of processes so far, their ended children included."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        ticks += sum(int(field) for field in fields[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


def private_bytes(pids: Iterable[int]) -> int:
    """Private resident memory of processes, file mappings apart (``Anonymous`` of smaps_rollup)."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Anonymous:"):
                total += int(line.split()[1]) << 10
    return total


def in_turn(cases: Mapping[str, Measure], repeat: int) -> dict[str, float]:
    """The median of ``2 * repeat`` measurements of each case, taken in the order A B … B A in every round.

    So a disk that is throttled after a burst, or whose host caches what was read before, favours none of them.
    """
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(repeat):
        for name in (*cases, *reversed(cases)):
            found[name].append(cases[name]())
    return {name: statistics.median(values) for name, values in found.items()}


def cold(measure: Measure) -> Measure:
    """The same with all caches of the kernel dropped before."""

    def measured() -> float:
        drop_page_cache()
        return measure()

    return measured


def write_block_file(path: Path, size_bytes: int) -> None:
    """Content that no layer can compress or share: pseudo-random, different at every position."""
    seed = os.urandom(BLOCK)
    with path.open("wb") as sink:
        for number in range(size_bytes // BLOCK):
            sink.write(number.to_bytes(8, "big") + seed[8 + number % 1024 :] + seed[: number % 1024])
