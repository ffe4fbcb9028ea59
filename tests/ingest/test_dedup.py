from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ingest.dedup import duplicates_of, find_duplicates, kept_mask
from ingest.parts import Member, Part
from ingest.rows import INDEX_SCHEMA


def part(folder: Path, name: str, keys: list[bytes]) -> Part:
    """A part with these row keys and nothing else."""
    (folder / name).mkdir(parents=True)
    with pa.ipc.new_file(str(folder / name / "index.arrow"), INDEX_SCHEMA) as sink:
        for at in range(0, len(keys), 7):
            chunk = keys[at : at + 7]
            arrays = [pa.array(chunk, pa.binary(16)), pa.array([1] * len(chunk), pa.uint64())]
            sink.write_batch(pa.record_batch(arrays, schema=INDEX_SCHEMA))
    return Part(name, (Member(len(keys), len(keys), {}, False),), {})


@pytest.mark.parametrize("partition_rows", [3, 50, 10**6])
def test_the_first_in_source_order_stays_however_many_partitions(tmp_path: Path, partition_rows: int) -> None:
    rng = random.Random(partition_rows)
    pool = [rng.randbytes(16) for _ in range(40)]
    keys = [[rng.choice(pool) for _ in range(size)] for size in (30, 0, 55, 1)]
    parts = [part(tmp_path / "parts", str(number), rows) for number, rows in enumerate(keys)]
    counts = find_duplicates(parts, tmp_path / "parts", tmp_path / "scratch", partition_rows)
    seen: set[bytes] = set()
    for number, rows in enumerate(keys):
        expected = []
        for row, key in enumerate(rows):
            if key in seen:
                expected.append(row)
            seen.add(key)
        assert duplicates_of(tmp_path / "scratch", number).tolist() == expected
        assert counts[number] == len(expected)
        assert int(np.count_nonzero(kept_mask(tmp_path / "scratch", number, len(rows)))) == len(rows) - len(expected)


def test_keys_that_share_one_half_are_different(tmp_path: Path) -> None:
    low, high = b"\1" * 8, b"\2" * 8
    one = part(tmp_path / "parts", "a", [low + high, low + low, high + high, high + low])
    assert find_duplicates([one], tmp_path / "parts", tmp_path / "scratch") == [0]
