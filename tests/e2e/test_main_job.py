"""The main job on real public files, with both object stores."""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.shelf import Shelf, running_shelf, wait_until
from tests.support.s3_server import BUCKET, S3Server
from tests.support.shared_data import shared


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server.start(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module", params=["local", "s3"])
def shelf(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    home = tmp_path_factory.mktemp(f"shelf-{request.param}")
    if request.param == "local":
        with running_shelf(home) as started:
            yield started
    else:
        server: S3Server = request.getfixturevalue("s3")
        with running_shelf(home, objects=f"s3://{BUCKET}/objects", environment=server.environment()) as started:
            yield started


def crosswoz(folder: Path) -> tuple[list[Path], int, int]:
    with zipfile.ZipFile(shared("crosswoz", "data", "crosswoz", "val.json.zip")) as archive:
        archive.extract("val.json", folder)
    dialogues = json.loads((folder / "val.json").read_text("utf-8"))
    bodies = {tuple((turn["role"], turn["content"]) for turn in one["messages"]) for one in dialogues.values()}
    return [folder / "val.json"], len(dialogues), len(bodies)


def kdconv(folder: Path) -> tuple[list[Path], int, int]:
    files = sorted(shared("kdconv", "data").glob("*/*.json"))
    dialogues = [one for file in files for one in json.loads(file.read_text("utf-8"))]
    bodies = {tuple(turn["message"] for turn in one["messages"]) for one in dialogues}
    return files, len(dialogues), len(bodies)


def poems(folder: Path) -> tuple[list[Path], int, int]:
    files = sorted(shared("chinese-poetry", "全唐诗").glob("poet.tang.*.json"))
    rows = [one for file in files for one in json.loads(file.read_text("utf-8"))]
    bodies = {"\n".join(one["paragraphs"]).strip() for one in rows}  # a poem is its lines; title and author are meta
    return files, len(rows), len(bodies)


def laws(folder: Path) -> tuple[list[Path], int, int]:
    folders = [shared("laws", name) for name in ("刑法", "宪法", "民法典", "社会法")]
    files = [file for one in folders for file in sorted(one.rglob("*.md"))]
    return folders, len(files), len({file.read_text("utf-8").strip() for file in files})


def split_rows(folder: Path, home: Path) -> dict[str, int]:
    """Rows of each split as a training job finds them: ``load_dataset(folder)`` in a process of its own."""
    script = (
        "import sys, json, datasets; loaded = datasets.load_dataset(sys.argv[1]);"
        "print(json.dumps({name: rows.num_rows for name, rows in loaded.items()}))"
    )
    env = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(home / "hf"), "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return counts


def sha256sum(folder: Path) -> dict[str, str]:
    done = subprocess.run("find . -type f -print0 | sort -z | xargs -0 sha256sum", shell=True, cwd=folder,
                          capture_output=True, text=True, check=True)  # fmt: skip
    return {line[66:].removeprefix("./"): line[:64] for line in done.stdout.splitlines()}


@pytest.mark.parametrize("corpus", [crosswoz, kdconv, poems, laws], ids=lambda corpus: corpus.__name__)
def test_a_corpus_becomes_a_folder_that_a_training_job_opens(shelf: Shelf, tmp_path: Path, corpus: Any) -> None:
    sources, records, distinct = corpus(tmp_path)
    release = f"datasets/real/{corpus.__name__}@1.0"
    figures = shelf.ingest(release, *sources)
    assert figures["release"] == release
    assert figures["rows_in"] == records
    assert figures["rows_in"] == figures["rows_out"] + figures["rejected"] + figures["duplicates"]
    assert figures["rejected"] == 0
    assert figures["rows_out"] == distinct

    shelf.publish(release)
    shown = shelf.ok("reader", "show", release, "--json").json
    assert shown["state"] == "published"
    listed = {file["path"]: file["sha256"] for file in shown["files"]}
    assert {"README.md", "LICENSE", "croissant.json"} <= set(listed)

    point = shelf.mount(f"m-{corpus.__name__}")
    folder = point / "datasets" / "real" / corpus.__name__ / "1.0"
    # One cache of `datasets` for all corpora: releases whose folders are all called 1.0 must not be mixed up in it.
    assert sum(split_rows(folder, shelf.home).values()) == distinct

    mounted = sha256sum(folder)
    assert {path: digest for path, digest in mounted.items() if path in listed} == listed
    assert set(mounted) - set(listed) == {"release.json", "release.json.sig"}
    store_digests = {digest for path, digest in listed.items() if (folder / path).stat().st_size > 1 << 20}
    if shelf.objects is None:
        stored = {file.name: file for file in (shelf.data / "objects").rglob("*") if file.is_file()}
        for digest in store_digests:
            assert hashlib.sha256(stored[digest].read_bytes()).hexdigest() == digest

    subprocess.run(["cp", "-r", str(folder), str(tmp_path / "copy")], check=True)
    shelf.ok("reader", "pull", release, tmp_path / "pulled")
    for other in (tmp_path / "copy", tmp_path / "pulled"):
        compared = filecmp.cmpfiles(folder, other, sorted(mounted), shallow=False)
        assert compared == (sorted(mounted), [], [])
    shelf.umount(point)
    assert not os.path.ismount(point)


def test_the_same_ingest_again_prints_the_same_release(shelf: Shelf, tmp_path: Path) -> None:
    sources, _, _ = kdconv(tmp_path)
    first = shelf.ingest("datasets/real/again@1.0", *sources)
    shelf.publish("datasets/real/again@1.0")
    again = shelf.ingest("datasets/real/again@1.0", *sources)
    assert again["release"] == first["release"]
    assert again["manifest_digest"] == first["manifest_digest"]
    assert shelf.ok("reader", "show", "datasets/real/again@1.0", "--json").json["state"] == "published"


def test_tags_are_links_and_a_withdrawn_release_disappears(shelf: Shelf, tmp_path: Path) -> None:
    sources, _, _ = kdconv(tmp_path)
    release = "datasets/real/tagged@1.0"
    shelf.ingest(release, *sources)
    shelf.publish(release)
    shelf.ok("curator", "tag", release, "latest")
    point = shelf.mount("m-tagged")
    collection = point / "datasets" / "real" / "tagged"
    assert os.readlink(collection / "latest") == "1.0"
    assert (collection / "latest" / "README.md").read_bytes() == (collection / "1.0" / "README.md").read_bytes()
    shelf.ok("administrator", "withdraw", release, "--reason", "takedown", "--note", "asked by the owner")
    wait_until(
        "the names to go", lambda: not (collection / "1.0").exists() and not os.path.lexists(collection / "latest")
    )
    gone = shelf.call(
        "curator", "ingest", *sources, "--to", "datasets/real/tagged", "--version", "1.0", "--licence", "MIT"
    )
    assert gone.code == 1
    assert "withdrawn" in gone.stderr
    assert len(gone.stderr.strip().splitlines()) == 1
    shelf.umount(point)
