"""One large file: first read from S3, then from the cache in every tier, beside the native disk and the peers."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from scripts.bench.host import (
    cold,
    cpu_seconds,
    drop_page_cache,
    in_turn,
    sequential_mb_s,
    touch_memory,
    write_block_file,
)
from scripts.bench.peers import PEERS, curl_gets, presigned, urllib3_gets
from scripts.bench.shelves import daemon_pids, folder_of, fresh_mount, object_key, publish, wait_sealed
from tests.e2e.shelf import Shelf, wait_until
from tests.support.s3_server import S3Server

RELEASE = "datasets/bench/numbers@1.0"
NAME = "numbers.bin"
RANDOM_S = 3
SERVED = {"OPENSHELF_PASSTHROUGH": "0", "OPENSHELF_MATERIALISE": "no"}
PASSTHROUGH = {"OPENSHELF_MATERIALISE": "no"}


def random_iops(path: Path) -> float:
    """4 KiB reads a second of two processes at random places of a file (fio, psync)."""
    command = ["fio", "--name=random", f"--filename={path}", "--readonly", "--rw=randread", "--bs=4k", "--numjobs=2",
               "--ioengine=psync", "--time_based", f"--runtime={RANDOM_S}", "--group_reporting", "--invalidate=0",
               "--output-format=json", "--fadvise_hint=0"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]["iops"])


def measure(shelf: Shelf, server: S3Server, home: Path, size_mib: int, repeat: int) -> dict[str, Any]:
    """All figures of one file of ``size_mib``."""
    source = home / NAME
    write_block_file(source, size_mib << 20)
    digest = publish(shelf, RELEASE, {NAME: source})[NAME]
    size = source.stat().st_size
    source.unlink()
    key = object_key(server, digest)
    result: dict[str, Any] = {"first_read": first_reads(shelf, server, home, key, size, digest, repeat)}
    for tier, env in (
        ("passthrough", PASSTHROUGH),
        ("served", SERVED),
        ("materialised", {"OPENSHELF_PASSTHROUGH": "0"}),
    ):
        result[tier] = cached(shelf, tier, env, digest, repeat)
    result |= {name: cached_peer(name, server, home, key, repeat) for name in PEERS}
    return result


def first_reads(
    shelf: Shelf, server: S3Server, home: Path, key: str, size: int, digest: str, repeat: int
) -> dict[str, Any]:
    """Medians of ``repeat`` first reads of each way, every one with an empty cache."""
    url = presigned(server, key)
    gigabytes = size / 1e9
    speeds: dict[str, list[float]] = {}
    costs: dict[str, list[float]] = {}

    def note(name: str, speed: float, cost: float) -> None:
        speeds.setdefault(name, []).append(speed)
        costs.setdefault(name, []).append(cost)

    for number in range(repeat):
        drop_page_cache()
        urllib3_gets(url, size)  # the server's own disk and caches are warm for everybody
        note("urllib3", *urllib3_gets(url, size))
        note("curl", *curl_gets(url, size))
        for tier, env in (("openshelf", PASSTHROUGH), ("openshelf_served", SERVED)):
            with fresh_mount(shelf, f"first-{tier}-{number}", **env) as point:
                path = folder_of(point, RELEASE) / NAME
                path.stat()
                pids = daemon_pids(shelf, point)
                touch_memory()
                before = cpu_seconds(pids)
                speed = sequential_mb_s(path)
                wait_sealed(shelf.cache(f"first-{tier}-{number}"), digest)
                note(tier, speed, (cpu_seconds(pids) - before) / gigabytes)
        for name, peer in PEERS.items():
            with peer(home, server) as (point, pids):
                touch_memory()
                before = cpu_seconds(pids)
                speed = sequential_mb_s(point / key)
                note(name, speed, (cpu_seconds(pids) - before) / gigabytes)
            shutil.rmtree(home / f"{name}-cache", ignore_errors=True)
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    best = max(medians["urllib3"], medians["curl"])
    return {
        name: {
            "mb_s": round(speed),
            "ratio_to_gets": round(speed / best, 2),
            "cpu_s_per_gb": round(statistics.median(costs[name]), 2),
        }
        for name, speed in medians.items()
    }


def cached(shelf: Shelf, tier: str, env: dict[str, str], digest: str, repeat: int) -> dict[str, Any]:
    """Reads of the sealed file through the mount, beside its own file in the cache."""
    name = f"cached-{tier}"
    with fresh_mount(shelf, name, **env) as point:
        path = folder_of(point, RELEASE) / NAME
        sequential_mb_s(path)
        native = wait_sealed(shelf.cache(name), digest)
        if tier == "materialised":
            wait_until("the release is materialised", lambda: shelf.status(point).get("releases_materialised"), 60)
        before, reads = cpu_seconds(daemon_pids(shelf, point)), shelf.status(point)["reads_served"]
        cold_mb_s = in_turn(
            {"native": cold(lambda: sequential_mb_s(native)), "mount": cold(lambda: sequential_mb_s(path))}, repeat
        )
        cost = (cpu_seconds(daemon_pids(shelf, point)) - before) / (2 * repeat * native.stat().st_size / 1e9)
        sequential_mb_s(native)
        sequential_mb_s(path)
        hot_mb_s = in_turn({"native": lambda: sequential_mb_s(native), "mount": lambda: sequential_mb_s(path)}, repeat)
        iops = in_turn({"native": lambda: random_iops(native), "mount": lambda: random_iops(path)}, 2)
        return {
            "cached_mb_s": round(cold_mb_s["mount"]),
            "cached_native_mb_s": round(cold_mb_s["native"]),
            "cached_ratio": round(cold_mb_s["mount"] / cold_mb_s["native"], 3),
            "cached_cpu_s_per_gb": round(cost, 3),
            "hot_mb_s": round(hot_mb_s["mount"]),
            "hot_ratio": round(hot_mb_s["mount"] / hot_mb_s["native"], 3),
            "hot_random_4k_iops": round(iops["mount"]),
            "hot_random_4k_ratio": round(iops["mount"] / iops["native"], 3),
            "reads_served": shelf.status(point)["reads_served"] - reads,
        }


def cached_peer(name: str, server: S3Server, home: Path, key: str, repeat: int) -> dict[str, Any]:
    """The same of a peer whose cache is full."""
    with ExitStack() as stack:
        point, pids = stack.enter_context(PEERS[name](home, server))
        path = point / key
        sequential_mb_s(path)
        before = cpu_seconds(pids)
        cold_mb_s = in_turn({"mount": cold(lambda: sequential_mb_s(path))}, repeat)["mount"]
        cost = (cpu_seconds(pids) - before) / (2 * repeat * path.stat().st_size / 1e9)
        hot_mb_s = in_turn({"mount": lambda: sequential_mb_s(path)}, repeat)["mount"]
        return {"cached_mb_s": round(cold_mb_s), "cached_cpu_s_per_gb": round(cost, 2), "hot_mb_s": round(hot_mb_s)}
