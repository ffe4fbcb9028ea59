"""Every wrong use gives one clear line, loses nothing, and the right use works afterwards."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.shelf import Outcome, Shelf, free_port, running_shelf, wait_until


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    with running_shelf(tmp_path_factory.mktemp("wrong")) as started:
        yield started


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.jsonl"
    rows = [{"id": f"r{number}", "text": f"第{number}行，内容各不相同。"} for number in range(50)]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def one_line(outcome: Outcome, *words: str, code: int = 1) -> None:
    """The command failed with one line that holds ``words``, and no traceback."""
    assert outcome.code == code, outcome.stderr
    lines = outcome.stderr.strip().splitlines()
    errors = [line for line in lines if line.startswith("openshelf: ")]
    assert len(errors) == 1, outcome.stderr
    assert "Traceback" not in outcome.stderr
    for word in words:
        assert word in errors[0], errors[0]


def test_a_release_without_a_licence_is_not_submitted_and_is_mended_by_ingesting_with_one(
    shelf: Shelf, good: Path
) -> None:
    release = "datasets/wrong/unlicensed@1.0"
    shelf.ingest(release, good, licence=None)
    one_line(shelf.call("curator", "submit", release), "licence", "--licence")
    shelf.ingest(release, good, licence="Apache-2.0")
    shelf.ok("curator", "submit", release)


def test_an_unknown_licence_is_refused_with_the_nearest_one(shelf: Shelf, good: Path) -> None:
    outcome = shelf.call(
        "curator", "ingest", good, "--to", "datasets/wrong/lic", "--version", "1", "--licence", "Apache-2.1"
    )
    one_line(outcome, "Apache-2.1", "Apache-2.0", code=2)


@pytest.mark.parametrize("name", ["dataset/a/b", "datasets/a", "datasets/../b", "datasets/a/b/c"])
def test_an_impossible_collection_is_wrong_usage(shelf: Shelf, good: Path, name: str) -> None:
    one_line(shelf.call("curator", "ingest", good, "--to", name, "--version", "1.0"), "is not a collection", code=2)


@pytest.mark.parametrize("command", ["show", "submit", "publish", "approve"])
def test_an_unknown_release_is_named(shelf: Shelf, command: str) -> None:
    role = "auditor" if command == "approve" else "curator"
    one_line(shelf.call(role, command, "datasets/no/where@9"), "datasets/no/where")


def test_a_wrong_token_is_refused_without_being_repeated(shelf: Shelf, good: Path) -> None:
    token = shelf.tokens["curator"]
    wrong = token[:-4] + ("aaaa" if token[-4:] != "aaaa" else "bbbb")
    outcome = shelf.call(wrong, "search", "x")
    one_line(outcome, "token")
    assert wrong not in outcome.stderr
    one_line(shelf.call("not-a-token", "search", "x"), "token")
    one_line(shelf.call(None, "search", "x"), "OPENSHELF_TOKEN", code=2)


def test_a_role_that_may_not_is_told_which_may(shelf: Shelf, good: Path) -> None:
    outcome = shelf.call("reader", "ingest", good, "--to", "datasets/wrong/role", "--version", "1", "--licence", "MIT")
    one_line(outcome, "curator")


def test_a_port_in_use_is_named(shelf: Shelf, tmp_path: Path) -> None:
    one_line(shelf.call(None, "serve", "--data", tmp_path / "d", "--port", str(shelf.port)), str(shelf.port))


def test_a_second_catalog_on_the_same_data_is_refused(shelf: Shelf) -> None:
    one_line(shelf.call(None, "serve", "--data", shelf.data, "--port", str(free_port())), str(shelf.data))


def test_a_catalog_that_does_not_answer_is_named(shelf: Shelf, good: Path) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    one_line(shelf.call("reader", "search", "x", OPENSHELF_CATALOG=address), address)


def test_nobody_approves_his_own_release_not_even_with_a_second_token(shelf: Shelf, good: Path) -> None:
    release = "datasets/wrong/self@1.0"
    shelf.ingest(release, good)
    shelf.ok("curator", "submit", release)
    second = shelf.token("auditor", "lin")  # the curator's name: the same person
    one_line(shelf.call(second, "approve", release), "by you", "Somebody else")
    shelf.ok("auditor", "approve", release)


def test_a_mount_point_that_is_busy_is_refused(shelf: Shelf, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "something").touch()
    arguments = ["--cache", str(tmp_path / "c"), "--cache-size", "1G"]
    one_line(shelf.call("node", "mount", full, *arguments), str(full))
    (tmp_path / "file").touch()
    one_line(shelf.call("node", "mount", tmp_path / "file", *arguments), "file")
    point = shelf.mount("twice")
    one_line(shelf.call("node", "mount", point, *arguments), str(point))
    other = tmp_path / "other"
    other.mkdir()
    one_line(shelf.call("node", "mount", other, "--cache", shelf.cache("twice"), "--cache-size", "1G"), "cache")
    inside = shelf.call("node", "mount", other, "--cache", other / "c", "--cache-size", "1G")
    one_line(inside, "cache", code=2)
    shelf.umount(point)


def test_unmounting_while_a_file_is_open_names_the_holder(shelf: Shelf, good: Path) -> None:
    release = "datasets/wrong/held@1.0"
    shelf.ingest(release, good)
    shelf.publish(release)
    point = shelf.mount("held")
    with (point / "datasets" / "wrong" / "held" / "1.0" / "README.md").open("rb"):
        one_line(shelf.call(None, "umount", point), str(os.getpid()), "--lazy")
    shelf.umount(point)
    one_line(shelf.call(None, "status", point), str(point))


@contextmanager
def small_disk(point: Path, size: str) -> Iterator[Path]:
    """A tmpfs of ``size`` at ``point``."""
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(point)], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)


def big_rows(path: Path, rows: int) -> None:
    with path.open("w", encoding="utf-8") as sink:
        for number in range(rows):
            noise = os.urandom(400).hex()
            sink.write(json.dumps({"id": f"r{number}", "text": f"第{number}行{noise}"}, ensure_ascii=False) + "\n")


def test_a_full_disk_under_the_run_folder_stops_with_one_line_and_is_resumed(shelf: Shelf, tmp_path: Path) -> None:
    big_rows(tmp_path / "big.jsonl", 20_000)
    arguments = ["ingest", str(tmp_path / "big.jsonl"), "--to", "datasets/wrong/full", "--version", "1.0",
                 "--licence", "MIT", "--json"]  # fmt: skip
    with small_disk(tmp_path / "runs", "6M") as runs:
        one_line(shelf.call("curator", *arguments[:-1], OPENSHELF_DATA=str(runs)), "space", str(runs))
        subprocess.run(["mount", "-o", "remount,size=200M", str(runs)], check=True)
        resumed = shelf.ok("curator", *arguments, OPENSHELF_DATA=str(runs)).json
    assert resumed["rows_out"] == 20_000


def test_a_full_disk_under_the_catalog_is_said_and_the_upload_is_resumed(tmp_path: Path) -> None:
    big_rows(tmp_path / "big.jsonl", 20_000)
    arguments = ["ingest", str(tmp_path / "big.jsonl"), "--to", "datasets/wrong/full", "--version", "1.0",
                 "--licence", "MIT", "--json"]  # fmt: skip
    (tmp_path / "home").mkdir()
    with small_disk(tmp_path / "home" / "catalog", "6M") as data, running_shelf(tmp_path / "home") as shelf:
        one_line(shelf.call("curator", *arguments[:-1]), "full", "nothing was stored")
        subprocess.run(["mount", "-o", "remount,size=200M", str(data)], check=True)
        assert shelf.ok("curator", *arguments).json["rows_out"] == 20_000
        shelf.stop_catalog()


def test_a_corrupted_object_gives_an_error_and_never_wrong_bytes(shelf: Shelf, tmp_path: Path) -> None:
    big_rows(tmp_path / "big.jsonl", 20_000)
    release = "datasets/wrong/rot@1.0"
    shelf.ingest(release, tmp_path / "big.jsonl")
    shelf.publish(release)
    files = shelf.ok("reader", "show", release, "--json").json["files"]
    parquet = next(file for file in files if file["path"].endswith(".parquet"))
    assert parquet["size"] > 4 << 20
    stored = next(path for path in (shelf.data / "objects").rglob(parquet["sha256"]) if path.is_file())
    whole = stored.read_bytes()
    stored.chmod(0o644)
    stored.write_bytes(whole[: 5 << 20] + bytes([whole[5 << 20] ^ 1]) + whole[(5 << 20) + 1 :])
    point = shelf.mount("rot")
    path = point / "datasets" / "wrong" / "rot" / "1.0" / parquet["path"]
    with path.open("rb", buffering=0) as source:
        assert source.read(1 << 20) == whole[: 1 << 20]  # the first chunk is whole
        with pytest.raises(OSError, match="Input/output error"):
            os.pread(source.fileno(), 1 << 20, 5 << 20)
    log = (shelf.cache("rot") / "mountd.log").read_text("utf-8")
    assert parquet["sha256"] in log
    pulled = shelf.call("reader", "pull", release, tmp_path / "pulled")
    one_line(pulled, parquet["path"])
    assert not (tmp_path / "pulled" / parquet["path"]).exists()
    stored.write_bytes(whole)

    def is_whole() -> bool:
        try:
            return path.read_bytes() == whole
        except OSError:
            return False  # for a few seconds, a chunk that did not come is not asked for again

    wait_until("the whole file", is_whole)
    shelf.umount(point)


def test_a_node_refuses_an_older_feed_and_goes_on_serving(tmp_path: Path, good: Path) -> None:
    with running_shelf(tmp_path / "home") as shelf:
        shelf.ingest("datasets/feed/one@1.0", good)
        shelf.publish("datasets/feed/one@1.0")
        shelf.stop_catalog()
        shutil.copytree(shelf.data, tmp_path / "older")
        shelf.start()
        shelf.ingest("datasets/feed/two@1.0", good)
        shelf.publish("datasets/feed/two@1.0")
        point = shelf.mount()
        card = (point / "datasets/feed/two/1.0/README.md").read_bytes()
        seen = shelf.status(point)["feed_serial"]
        shelf.stop_catalog()
        shutil.rmtree(shelf.data)
        shutil.copytree(tmp_path / "older", shelf.data)
        shelf.start()
        wait_until("the node to notice", lambda: shelf.status(point)["stale"], 90)
        assert shelf.status(point)["feed_serial"] == seen
        assert (point / "datasets/feed/two/1.0/README.md").read_bytes() == card
        shelf.umount(point)


def test_a_cache_on_overlayfs_warns_once_and_serves(shelf: Shelf, tmp_path: Path, good: Path) -> None:
    release = "datasets/wrong/overlay@1.0"
    shelf.ingest(release, good)
    shelf.publish(release)
    for name in ("lower", "upper", "work", "merged", "point"):
        (tmp_path / name).mkdir()
    layers = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, str(tmp_path / "merged")], check=True)
    point = tmp_path / "point"
    try:
        cache = tmp_path / "merged" / "cache"
        mounted = shelf.ok("node", "mount", point, "--cache", cache, "--cache-size", "1G")
        shelf.mounts.append(point)
        assert "overlay" in mounted.stderr
        for file in (point / "datasets/wrong/overlay/1.0").rglob("*"):
            assert file.is_dir() or len(file.read_bytes()) == file.stat().st_size
        status = shelf.status(point)
        assert status["passthrough"] is False
        assert status["opens_served"] > 0
        assert (cache / "mountd.log").read_text("utf-8").count("which the kernel cannot read through") == 1
        shelf.umount(point)
    finally:
        subprocess.run(["umount", "-l", str(tmp_path / "merged")], check=True)


def rows_of(shelf: Shelf, release: str, folder: Path) -> list[str]:
    import pyarrow.parquet as pq

    shelf.publish(release)
    shelf.ok("reader", "pull", release, folder)
    files = sorted((folder / "data").glob("*.parquet"))
    return [str(value) for file in files for value in pq.read_table(file).column("text").to_pylist()]


def test_what_must_be_accepted_comes_out_right(shelf: Shelf, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    line = json.dumps({"text": "带签名的第一行，“引号”㎡①。"}, ensure_ascii=False) + "\n"
    (source / "a-bom.jsonl").write_bytes(b"\xef\xbb\xbf" + line.encode())
    gb = "国标编码的中文行，镕堃喆都在里面，四字节的㐂也在。"
    (source / "b-gb18030.jsonl").write_bytes((json.dumps({"text": gb}, ensure_ascii=False) + "\n").encode("gb18030"))
    utf16 = "这一行是十六位编码的，带字节序标记。"
    (source / "c-utf16.jsonl").write_bytes((json.dumps({"text": utf16}, ensure_ascii=False) + "\n").encode("utf-16"))
    separator = "行内有分隔符\u2028不是换行。"
    (source / "d-separator.jsonl").write_text(json.dumps({"text": separator}, ensure_ascii=False), "utf-8")
    long = "长" * (50 * 1000 * 1000 // 3)
    (source / "e-long.jsonl").write_text(json.dumps({"text": long}, ensure_ascii=False) + "\n", "utf-8")
    figures = shelf.ingest("datasets/wrong/accepted@1.0", source)
    assert (figures["rows_in"], figures["rows_out"], figures["rejected"]) == (5, 5, 0)
    rows = rows_of(shelf, "datasets/wrong/accepted@1.0", tmp_path / "out")
    assert rows[:3] == ["带签名的第一行，“引号”㎡①。", gb, utf16]
    assert rows[3] == separator
    assert rows[4] == long


def test_what_must_be_rejected_is_counted_with_its_reason_and_the_rest_is_kept(shelf: Shelf, tmp_path: Path) -> None:
    good_line = json.dumps({"text": "好的一行。"}, ensure_ascii=False).encode()
    lines = [
        good_line,
        b'{"text": "a\x00b"}',
        b'{"text": "alone \\udcb2"}',
        b'{"text": "' + b"x" * (70 * 1000 * 1000) + b'"}',
        b'{"text": "\xff\xfe\xfa"}',
        b'{"text": "cut',
        json.dumps({"text": "最后一行。"}, ensure_ascii=False).encode(),
    ]
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"\n".join(lines))
    figures = shelf.ingest("datasets/wrong/rejected@1.0", path)
    assert (figures["rows_in"], figures["rows_out"], figures["rejected"], figures["duplicates"]) == (7, 2, 5, 0)
    assert rows_of(shelf, "datasets/wrong/rejected@1.0", tmp_path / "out") == ["好的一行。", "最后一行。"]


def test_a_truncated_gz_keeps_the_rows_before_the_cut_and_ends_incomplete(shelf: Shelf, tmp_path: Path) -> None:
    big_rows(tmp_path / "rows.jsonl", 2000)
    packed = gzip.compress((tmp_path / "rows.jsonl").read_bytes(), mtime=0)
    (tmp_path / "cut.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    outcome = shelf.call(
        "curator", "ingest", tmp_path / "cut.jsonl.gz", "--to", "datasets/wrong/cut", "--version", "1.0",
        "--licence", "MIT", "--json",
    )  # fmt: skip
    assert outcome.code == 1
    assert "Traceback" not in outcome.stderr
    figures = outcome.json
    assert figures["status"] == "incomplete"
    assert 900 < figures["rows_out"] < 1100
    assert "cut.jsonl.gz" in outcome.stderr


def test_a_path_with_dots_is_refused_by_the_catalog(shelf: Shelf, tmp_path: Path) -> None:
    from catalog.client import Client, DraftAbout, DraftFile
    from catalog.manifest import DEFAULT_MTIME_NS
    from catalog.names import parse_release
    from openshelf.errors import OpenshelfError

    (tmp_path / "f").write_bytes(b"x")
    ref = parse_release("datasets/wrong/dots@1.0")
    with Client(shelf.url, shelf.tokens["curator"]) as client:
        client.create_draft(ref, DraftAbout(created="2000-01-01T00:00:00Z"))
        sent = client.upload(ref, tmp_path / "f")
        with pytest.raises(OpenshelfError, match=r"\.\."):
            client.seal(ref, [DraftFile("../evil", sent.sha256, mtime_ns=DEFAULT_MTIME_NS)])
        assert client.seal(ref, [DraftFile("good", sent.sha256, mtime_ns=DEFAULT_MTIME_NS)]).files == 1
