from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import zstandard

from ingest.decode import Encoding
from ingest.plan import Layout, read_split, whole
from ingest.readers.streams import ByteBlocks, read_head
from tests.support.shared_data import shared

ROWS = b"".join(
    json.dumps({"n": number, "text": f"第{number}行"}, ensure_ascii=False).encode() + b"\n" for number in range(20_000)
)


def zst(data: bytes, **options: int) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)


def content(path: Path, compression: str) -> tuple[bytes, bool]:
    blocks = ByteBlocks(path, compression)  # type: ignore[arg-type]
    return b"".join(blocks), blocks.truncated


@pytest.mark.parametrize(
    ("compression", "data"),
    [
        ("gzip", gzip.compress(ROWS)),
        ("gzip", gzip.compress(ROWS[:5000]) + gzip.compress(ROWS[5000:])),
        ("gzip", gzip.compress(ROWS) + b"\0" * 512),
        ("zstd", zst(ROWS)),
        ("zstd", zst(ROWS[:5000]) + zst(ROWS[5000:])),
        ("none", ROWS),
    ],
)
def test_a_whole_stream_is_read_and_not_called_truncated(tmp_path: Path, compression: str, data: bytes) -> None:
    path = tmp_path / "rows"
    path.write_bytes(data)
    assert content(path, compression) == (ROWS, False)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.99])
@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_rows_before_the_cut_of_a_stream_are_kept(tmp_path: Path, compression: str, share: float) -> None:
    packed = (
        gzip.compress(ROWS)
        if compression == "gzip"
        else b"".join(zst(ROWS[at : at + 10_000]) for at in range(0, len(ROWS), 10_000))
    )
    path = tmp_path / "rows.jsonl"
    path.write_bytes(packed[: int(len(packed) * share)])
    read, truncated = content(path, compression)
    assert truncated
    assert ROWS.startswith(read)
    assert len(read) > 0.5 * share * len(ROWS)
    layout = Layout("lines", compression, Encoding.UTF_8)  # type: ignore[arg-type]
    batches = list(read_split(path, layout, whole(layout, path.stat().st_size, 0)))
    numbers = [record["n"] for batch in batches for record in batch.records]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) == read.count(b"\n")
    assert any(batch.truncated for batch in batches)


def test_a_missing_gzip_trailer_is_a_cut(tmp_path: Path) -> None:
    path = tmp_path / "rows.gz"
    path.write_bytes(gzip.compress(ROWS)[:-4])
    assert content(path, "gzip") == (ROWS, True)


def test_garbage_behind_a_gzip_member_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "rows.gz"
    path.write_bytes(gzip.compress(ROWS) + b"garbage")
    assert content(path, "gzip") == (ROWS, True)


def test_an_expanding_stream_comes_in_bounded_blocks(tmp_path: Path) -> None:
    path = tmp_path / "zeros.gz"
    path.write_bytes(gzip.compress(b"0" * (200 << 20)))
    sizes = [len(block) for block in ByteBlocks(path, "gzip")]
    assert sum(sizes) == 200 << 20
    assert max(sizes) <= 4 << 20


def test_a_head_says_whether_it_is_all(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    assert read_head(path, "none", 3) == (b"abc", True)
    assert read_head(path, "none", 2) == (b"ab", False)


def test_damaged_zstd_frames_end_as_truncated() -> None:
    folder = shared("zstd")
    bad = sorted(path for path in folder.rglob("*.zst") if "golden-decompression-errors" in str(path))
    assert bad, "no sample of a damaged frame"
    for path in bad:
        assert content(path, "zstd")[1], path.name
