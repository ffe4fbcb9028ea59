from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from blake3 import blake3

from catalog.manifest import (
    BATCH_ROWS,
    CHUNK_BYTES,
    DEFAULT_MTIME_NS,
    ContentHasher,
    FileEntry,
    Manifest,
    ManifestError,
    digest_file,
    plan_packs,
    write_manifest,
)
from catalog.names import InvalidPath


def entry(path: str, size: int = 3) -> FileEntry:
    sha256 = hashlib.sha256(path.encode()).digest()
    return FileEntry(path, size, 0o444, DEFAULT_MTIME_NS, sha256, sha256, 0, (blake3(path.encode()).digest(),))


def test_the_digest_is_the_sha256_of_the_file_whatever_the_order_of_the_rows(tmp_path: Path) -> None:
    entries = [entry("b"), entry("a/b"), entry("a.b"), entry("数据/一.txt")]
    digest = write_manifest(entries, tmp_path / "one.arrow")
    again = write_manifest(entries[::-1], tmp_path / "two.arrow")
    assert digest == again == hashlib.sha256((tmp_path / "one.arrow").read_bytes()).digest()


def test_the_bytes_do_not_depend_on_the_process_that_wrote_them(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.catalog.test_manifest import entry;"
        "from catalog.manifest import write_manifest;"
        "print(write_manifest([entry(f'f{n}') for n in range(100)], Path(sys.argv[1])).hex())"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / f"{seed}.arrow")],
            env={"PYTHONHASHSEED": seed, "PATH": "", "TZ": zone},
            capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2],
        ).stdout
        for seed, zone in (("1", "UTC"), ("2", "Asia/Shanghai"))
    }  # fmt: skip
    assert len(answers) == 1


def test_rows_come_back_in_path_byte_order(tmp_path: Path) -> None:
    write_manifest([entry("a/b"), entry("a.b"), entry("a0"), entry("é")], tmp_path / "m.arrow")
    manifest = Manifest.open(tmp_path / "m.arrow")
    assert [row.path for row in manifest.rows()] == ["a.b", "a/b", "a0", "é"]
    assert manifest.row(1) == entry("a/b")
    assert manifest.find("a0") == 2
    assert manifest.find("a1") is None
    assert manifest.total_bytes() == 12
    with pytest.raises(IndexError):
        manifest.row(4)


def test_rows_are_found_across_batches(tmp_path: Path) -> None:
    count = BATCH_ROWS + 10
    write_manifest([entry(f"{number:07}") for number in range(count)], tmp_path / "m.arrow")
    manifest = Manifest.open(tmp_path / "m.arrow")
    assert len(manifest) == count
    assert [batch.num_rows for batch in manifest.batches()] == [BATCH_ROWS, 10]
    for number in (0, BATCH_ROWS - 1, BATCH_ROWS, count - 1):
        assert manifest.path(number) == f"{number:07}"
        assert manifest.find(f"{number:07}") == number


def test_an_empty_release_has_a_manifest(tmp_path: Path) -> None:
    write_manifest([], tmp_path / "m.arrow")
    manifest = Manifest.open(tmp_path / "m.arrow")
    assert len(manifest) == 0
    assert manifest.find("x") is None
    assert manifest.total_bytes() == 0


def test_the_file_is_plain_arrow_without_dictionaries_or_compression(tmp_path: Path) -> None:
    write_manifest([entry("a")], tmp_path / "m.arrow")
    with pa.memory_map(str(tmp_path / "m.arrow")) as source:
        table = pa.ipc.open_file(source).read_all()
    assert table.column_names == ["path", "size", "mode", "mtime_ns", "sha256", "object", "offset", "blake3"]
    assert str(table.schema.field("blake3").type) == "list<item: fixed_size_binary[32] not null>"
    assert table.schema.metadata == {b"openshelf.manifest.version": b"1"}


def test_a_flipped_bit_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "m.arrow"
    digest = write_manifest([entry("a"), entry("b")], path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ManifestError, match="has SHA-256"):
        Manifest.open(path, digest)


@pytest.mark.parametrize("content", [b"", b"ARROW1\0\0", b"not a manifest at all" * 50])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.arrow"
    path.write_bytes(content)
    with pytest.raises(ManifestError, match="cannot be read"):
        Manifest.open(path)


def test_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.arrow"
    table = pa.table({"path": ["a"]})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(ManifestError, match="another format"):
        Manifest.open(path)


def test_a_path_that_stands_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidPath, match="twice"):
        write_manifest([entry("a"), entry("a")], tmp_path / "m.arrow")


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES])
def test_content_digests_equal_those_of_the_whole_bytes(tmp_path: Path, size: int) -> None:
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    hasher = ContentHasher()
    for start in range(0, size, 1_000_003):
        hasher.update(data[start : start + 1_000_003])
    found = hasher.finish()
    assert found.size == size
    assert found.sha256 == hashlib.sha256(data).digest()
    assert found.chunks == tuple(
        blake3(data[start : start + CHUNK_BYTES]).digest() for start in range(0, size, CHUNK_BYTES)
    )
    path = tmp_path / "file"
    path.write_bytes(data)
    assert digest_file(path) == found


def test_known_digests() -> None:
    hasher = ContentHasher()
    hasher.update(b"abc")
    found = hasher.finish()
    # FIPS 180-2 appendix B.1, and the BLAKE3 of "abc" from the reference implementation.
    assert found.sha256.hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert found.chunks[0].hex() == "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"


def test_packs_hold_small_files_in_order_and_are_cut_at_64_mib() -> None:
    mib = 1 << 20
    files = [(bytes([number]) * 32, mib) for number in range(65)]
    files.insert(3, (b"L" * 32, mib + 1))
    packs = plan_packs(files)
    assert [len(pack) for pack in packs] == [64, 1]
    assert packs[0][:4] == [0, 1, 2, 4]
    assert packs[1] == [65]


def test_the_same_small_content_is_packed_once() -> None:
    assert plan_packs([(b"a" * 32, 5), (b"b" * 32, 7), (b"a" * 32, 5)]) == [[0, 1]]


def test_no_small_files_make_no_packs() -> None:
    assert plan_packs([(b"a" * 32, 1 << 21)]) == []
    assert plan_packs([]) == []
