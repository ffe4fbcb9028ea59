"""nginx with the site-cache configuration that ships in ``deploy/nginx``, its addresses and folders changed."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.s3_server import free_ports

SHIPPED = Path(__file__).resolve().parents[2] / "deploy" / "nginx" / "site-cache.conf"
_MAIN = """
daemon off;
user root;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 256; }}
http {{
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/site-cache.conf;
}}
"""


@dataclass(frozen=True)
class SiteCache:
    """A running site cache: its address, and the folder of its files."""

    url: str
    folder: Path

    @property
    def objects(self) -> Path:
        return self.folder / "objects"


@contextmanager
def site_cache(folder: Path, catalog: str, store: str, address: str = "127.0.0.1") -> Iterator[SiteCache]:
    """A site cache before the catalog and the object store at ``host:port``, listening at ``address``."""
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    (port,) = free_ports(1)
    folder.mkdir(parents=True)
    changes = {
        "catalog.example:8420": catalog,
        re.escape("s3.example:8333"): re.escape(store),
        "s3.example:8333": store,
        "listen 3128;": f"listen {address}:{port};",
        "/var/cache/openshelf/objects": str(folder / "objects"),
        "/run/openshelf-allowed": str(folder / "allowed"),
        "/run/openshelf-follow.sock": str(folder / "follow.sock"),
        "min_free=20g": "min_free=1m",
    }
    text = SHIPPED.read_text()
    for shipped, here in changes.items():
        assert shipped in text, shipped
        text = text.replace(shipped, here)
    (folder / "site-cache.conf").write_text(text)
    (folder / "nginx.conf").write_text(_MAIN.format(folder=folder))
    process = subprocess.Popen(
        [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    )
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection((address, port), 1).close()
                break
            except OSError:
                assert process.poll() is None, (folder / "error.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield SiteCache(f"http://{address}:{port}", folder)
    finally:
        process.terminate()
        process.wait(20)
