"""A folder of many small files: first epoch from S3, second from the cache, open and close, beside the native disk."""

from __future__ import annotations

import os
import random
import shutil
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scripts.bench.host import cold, in_turn
from scripts.bench.peers import s3fs
from scripts.bench.shelves import folder_of, fresh_mount
from scripts.bench.standin import packed, standin_shelf
from tests.e2e.shelf import Shelf, wait_until
from tests.support.s3_server import BUCKET, S3Server

RELEASE = "datasets/bench/images@1.0"
FILE_BYTES = 10 << 10
FOLDERS = 100
PEER_FILES = 2000
PEER_PREFIX = "small"
OPENED = 20_000
_STARTED_WITHIN_S = 300


def write_files(folder: Path, count: int) -> dict[str, Path]:
    """``count`` files of random bytes in :data:`FOLDERS` folders: path in the release → file."""
    files = {f"{number % FOLDERS:03}/{number:07}.jpg": folder for number in range(count)}
    for number in range(FOLDERS):
        (folder / f"{number:03}").mkdir(parents=True)
    for path in files:
        (folder / path).write_bytes(os.urandom(FILE_BYTES))
        files[path] = folder / path
    return files


def files_per_s(folder: Path, paths: Sequence[str]) -> float:
    """Files opened, read whole and closed a second, in the order given."""
    names = [os.fsencode(folder / path) for path in paths]
    started = time.perf_counter()
    for name in names:
        descriptor = os.open(name, os.O_RDONLY)
        os.read(descriptor, FILE_BYTES + 1)
        os.close(descriptor)
    return len(names) / (time.perf_counter() - started)


def opens_per_s(folder: Path, paths: Sequence[str]) -> float:
    """Files opened and closed a second; their names are known to the kernel."""
    names = [os.fsencode(folder / path) for path in paths]
    for name in names:
        os.stat(name)  # noqa: PTH116
    started = time.perf_counter()
    for name in names:
        os.close(os.open(name, os.O_RDONLY))
    return len(names) / (time.perf_counter() - started)


def measure(server: S3Server, home: Path, count: int, repeat: int) -> dict[str, Any]:
    """All figures of ``count`` files; the plain folder that they were made in is the native side."""
    native = home / "images"
    files = write_files(native, count)
    with standin_shelf(home / "small", [packed(RELEASE, files, home, server)], server) as shelf:
        result = tiers(shelf, native, files, repeat)
    result["s3fs"] = peer(server, home, files, repeat)
    result["first_epoch_to_s3fs"] = round(
        result["passthrough"]["first_epoch_files_s"] / result["s3fs"]["first_epoch_files_s"], 1
    )
    return result


def tiers(shelf: Shelf, native: Path, files: dict[str, Path], repeat: int) -> dict[str, Any]:
    """Passthrough, then materialised, each from an empty cache."""
    ordered = sorted(files)
    shuffled = random.Random(1).sample(ordered, len(ordered))
    opened = shuffled[:OPENED]
    result: dict[str, Any] = {"files": len(files), "file_bytes": FILE_BYTES}
    for tier, env in (("passthrough", {"OPENSHELF_MATERIALISE": "no"}), ("materialised", {})):
        with fresh_mount(shelf, f"small-{tier}", **env) as point:
            folder = folder_of(point, RELEASE)
            before = shelf.status(point).get("fetch_requests", 0)
            first = files_per_s(folder, ordered)
            requests = shelf.status(point).get("fetch_requests", 0) - before
            if tier == "materialised":
                wait_until(
                    "the release is materialised",
                    lambda point=point: shelf.status(point).get("releases_materialised"),
                    _STARTED_WITHIN_S,
                )
            else:
                time.sleep(3)  # small files reach the disk together, a moment later
            epoch = in_turn(
                {
                    "native": cold(lambda: files_per_s(native, shuffled)),
                    "mount": cold(lambda folder=folder: files_per_s(folder, shuffled)),
                },
                max(1, repeat // 2),
            )
            hot = in_turn(
                {
                    "native": lambda: files_per_s(native, shuffled),
                    "mount": lambda folder=folder: files_per_s(folder, shuffled),
                },
                max(1, repeat // 2),
            )
            opens = in_turn(
                {
                    "native": lambda: opens_per_s(native, opened),
                    "mount": lambda folder=folder: opens_per_s(folder, opened),
                },
                repeat,
            )
            result[tier] = {
                "first_epoch_files_s": round(first),
                "first_epoch_requests": requests,
                "second_epoch_files_s": round(epoch["mount"]),
                "second_epoch_ratio": round(epoch["mount"] / epoch["native"], 3),
                "hot_epoch_files_s": round(hot["mount"]),
                "hot_epoch_ratio": round(hot["mount"] / hot["native"], 3),
                "open_close_s": round(opens["mount"]),
                "open_close_ratio": round(opens["mount"] / opens["native"], 3),
            }
    return result


def peer(server: S3Server, home: Path, files: dict[str, Path], repeat: int) -> dict[str, Any]:
    """s3fs over some of the files as objects of their own."""
    some = sorted(files)[:PEER_FILES]
    client = server.client()
    with ThreadPoolExecutor(8) as threads:
        list(
            threads.map(
                lambda path: client.put_object(
                    Bucket=BUCKET, Key=f"{PEER_PREFIX}/{path}", Body=files[path].read_bytes()
                ),
                some,
            )
        )
    client.close()
    first, second = [], []
    for _ in range(max(1, repeat // 2)):
        with s3fs(home, server) as (point, _):
            first.append(files_per_s(point / PEER_PREFIX, some))
            second.append(files_per_s(point / PEER_PREFIX, some))
        shutil.rmtree(home / "s3fs-cache", ignore_errors=True)
    return {
        "files": len(some),
        "first_epoch_files_s": round(statistics.median(first)),
        "second_epoch_files_s": round(statistics.median(second)),
    }
