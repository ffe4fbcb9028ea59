"""The whole way of a corpus, on this machine, with real parts.

Starts a catalog with its embedded defaults, ingests files, reviews, publishes, mounts, and opens the release the way a
training job does. Started by ``scripts/demo``, which makes the environment first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import sample_corpus

OPENSHELF = str(Path(sys.executable).with_name("openshelf"))
PUBLIC = Path("/public")
Item = TypeVar("Item")
Result = TypeVar("Result")


class DemoFailed(Exception):
    """A step went wrong; the message is for the person at the terminal."""


def heading(text: str) -> None:
    print(f"\n\033[1m── {text}\033[0m" if sys.stdout.isatty() else f"\n── {text}", flush=True)


def free_port(wanted: int) -> int:
    """``wanted`` when it is free, else any free port."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise DemoFailed("No port is free on 127.0.0.1.")


def at_once(step: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """``step`` of each item, a few at a time; the results in the items' order."""
    with ThreadPoolExecutor((os.cpu_count() or 1) + 1) as pool:  # one of them is always waiting for the catalog
        return list(pool.map(step, items))


class Shelf:
    """The demo's own catalog, people, cache and mount point, all under one folder that is removed at the end."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.catalog = home / "catalog"
        self.cache = home / "cache"
        self.mount: Path | None = None
        self.server: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.tokens: dict[str, str] = {}

    def environment(self, role: str | None) -> dict[str, str]:
        """The environment of a command run as ``role`` (None: nobody)."""
        env = {key: value for key, value in os.environ.items() if not key.startswith("OPENSHELF_TOKEN")}
        env |= {"OPENSHELF_CATALOG": self.url, "OPENSHELF_DATA": str(self.home / "client")}
        return env | ({"OPENSHELF_TOKEN": self.tokens[role]} if role else {})

    def call(self, role: str | None, *arguments: str) -> str:
        """Run ``openshelf`` as a person of ``role``, showing the command; return what it printed on stdout."""
        shown = " ".join(argument if " " not in argument else f"'{argument}'" for argument in arguments)
        print(f"  $ openshelf {shown}", flush=True)
        done = subprocess.run(
            [OPENSHELF, *arguments], env=self.environment(role), stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            raise DemoFailed(f"`openshelf {arguments[0]}` ended with exit code {done.returncode}; its words are above.")
        return done.stdout

    def json(self, role: str | None, *arguments: str) -> dict[str, object]:
        """The same with ``--json``."""
        answer: dict[str, object] = json.loads(self.call(role, *arguments, "--json"))
        return answer

    def serve(self) -> None:
        port = free_port(8420)
        self.url = f"http://127.0.0.1:{port}"
        print(f"  $ openshelf serve --data {self.catalog} --port {port} &", flush=True)
        self.catalog.mkdir(parents=True)
        with (self.home / "catalog.log").open("wb") as log:
            self.server = subprocess.Popen(
                [OPENSHELF, "serve", "--data", str(self.catalog), "--port", str(port)],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if self.server.poll() is not None:
                break
            try:
                with urllib.request.urlopen(self.url + "/readyz", timeout=2):
                    break
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        if self.server.poll() is not None or time.monotonic() >= deadline:
            raise DemoFailed("The catalog did not start:\n" + (self.home / "catalog.log").read_text("utf-8", "replace"))
        self.tokens["administrator"] = (self.catalog / "admin.token").read_text("ascii").strip()
        people = (("curator", "Li Curator"), ("auditor", "Wang Auditor"), ("node", "node-1"))
        self.tokens |= dict(at_once(self.appoint, people))

    def appoint(self, person: tuple[str, str]) -> tuple[str, str]:
        """A token for a (role, name): the role and the token."""
        role, name = person
        return role, str(self.json("administrator", "token", "create", "--role", role, "--name", name)["token"])

    def choose_mount_point(self) -> Path:
        """``/public`` when we may and it is unused, else a folder of the demo's own."""
        own = self.home / "public"
        if os.geteuid() == 0 and not os.path.ismount(PUBLIC):
            try:
                PUBLIC.mkdir(exist_ok=True)
            except OSError:
                pass
            else:
                if not any(PUBLIC.iterdir()):
                    return PUBLIC
        own.mkdir()
        return own

    def stop(self) -> None:
        """Stop the catalog, unmount meanwhile, and remove everything that the demo made."""
        if self.server is not None and self.server.poll() is None:
            self.server.send_signal(signal.SIGTERM)
        if self.mount is not None:
            subprocess.run([OPENSHELF, "umount", str(self.mount), "--lazy"], check=False, stdout=subprocess.DEVNULL)
        if self.server is not None:
            try:
                self.server.wait(20)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()
        shutil.rmtree(self.home, ignore_errors=True)


def submit(shelf: Shelf, name: str, files: list[Path]) -> tuple[str, dict[str, object]]:
    """Bring one corpus from files to a submitted release; returns its name and the ingest's figures."""
    collection = f"datasets/demo/{name}"
    figures = shelf.json(
        "curator", "ingest", *map(str, files), "--to", collection, "--version", "1.0", "--licence", "CC-BY-4.0"
    )
    release = f"{collection}@1.0"
    shelf.call("curator", "submit", release)
    return release, figures


def publish(shelf: Shelf, release: str) -> None:
    """The second person's approval, and what follows it."""
    shelf.call("auditor", "approve", release, "--note", "read the report")
    shelf.call("curator", "publish", release)
    shelf.call("curator", "tag", release, "latest")


def print_figures(release: str, figures: Mapping[str, object], truth: Mapping[str, object] | None) -> None:
    print(
        f"  {release}: {figures['rows_in']} rows in = {figures['rows_out']} out + {figures['rejected']} rejected"
        f" + {figures['duplicates']} duplicates, {figures['seconds']} s"
    )
    print(f"  findings: {json.dumps(figures['findings'], ensure_ascii=False)}")
    if truth:
        print(f"  planted:  {json.dumps(truth['planted'], ensure_ascii=False)} (+ those in repeated lines)")


def print_tree(top: Path, limit: int = 40) -> None:
    shown = 0
    for folder, folders, files in os.walk(top):
        folders.sort()
        if ".openshelf" in folders:
            folders.remove(".openshelf")
        depth = len(Path(folder).relative_to(top).parts)
        print(f"  {'  ' * depth}{Path(folder).name if depth else folder}/")
        for name in sorted(files):
            path = Path(folder, name)
            print(f"  {'  ' * (depth + 1)}{name}  {path.stat().st_size:,} B")
            shown += 1
            if shown >= limit:
                print("  …")
                return


def load(folder: Path, home: Path) -> None:
    """Open a release as a training job does: one call, no arguments."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(home / "hf"), "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    import datasets

    print(f"  >>> datasets.load_dataset({str(folder)!r})")
    loaded = datasets.load_dataset(str(folder))
    for split, rows in loaded.items():
        first = json.dumps(rows[0], ensure_ascii=False)
        print(f"  {split}: {rows.num_rows} rows, {', '.join(rows.column_names)}")
        print(f"  first: {first[:160]}{'…' if len(first) > 160 else ''}")


def read_all(top: Path) -> tuple[int, float]:
    """Bytes and seconds of reading every file below ``top`` once."""
    total, started = 0, time.perf_counter()
    for folder, _, files in os.walk(top):
        for name in files:
            with open(Path(folder, name), "rb", buffering=0) as source:
                while data := source.read(1 << 20):
                    total += len(data)
    return total, time.perf_counter() - started


def run(shelf: Shelf, files: list[Path], once: bool) -> None:
    truth: dict[str, dict[str, object]] = {}
    heading("1. A catalog with embedded defaults (SQLite, local folder) and three people's tokens")
    shelf.serve()
    if files:
        corpora = {"corpus": files}
    else:
        heading("2. A corpus: generated, with planted personal data, repeated and broken lines")
        truth = sample_corpus.write(shelf.home / "sample", 2000, 1)  # type: ignore[assignment]
        corpora = {name: [shelf.home / "sample" / f"{name}.jsonl"] for name in truth}
        print(
            f"  {', '.join(f'{path.name} {path.stat().st_size:,} B' for paths in corpora.values() for path in paths)}"
        )
    heading("3. Ingest: decode, map, normalise, de-identify, deduplicate, shard; then submit for review")
    made = at_once(lambda corpus: submit(shelf, *corpus), corpora.items())
    for (release, figures), name in zip(made, corpora, strict=True):
        print_figures(release, figures, truth.get(name))
    releases = [release for release, _ in made]
    heading(f"4. What the auditor reads about {releases[0]}, and the approval by a second person")
    report = shelf.call("auditor", "show", releases[0], "--report")
    print("\n".join("  │ " + line for line in report.splitlines()[:60]))
    at_once(lambda release: publish(shelf, release), releases)
    heading("5. A node mounts the shelf")
    shelf.mount = shelf.choose_mount_point()
    shelf.call("node", "mount", str(shelf.mount), "--cache", str(shelf.cache), "--cache-size", "10G")
    print_tree(shelf.mount)
    heading("6. A training job opens a folder")
    for release in releases:
        collection, _, version = release.partition("@")
        load(shelf.mount / collection / version, shelf.home)
    size, first_s = read_all(shelf.mount / "datasets")
    _, second_s = read_all(shelf.mount / "datasets")
    first, second = size / first_s / 1e6, size / second_s / 1e6
    print(f"  read {size / 1e6:.1f} MB under {shelf.mount}: {first:.0f} MB/s, again {second:.0f} MB/s")
    status = shelf.json(None, "status", str(shelf.mount))
    keys = (
        "transport",
        "passthrough",
        "opens_passthrough",
        "opens_served",
        "reads_served",
        "cache_bytes",
        "feed_serial",
    )
    print("  " + ", ".join(f"{key} {status[key]}" for key in keys))
    heading("Addresses")
    print(f"  catalog      {shelf.url}   (API: {shelf.url}/v1/openapi.json)")
    print(f"  mount        {shelf.mount}")
    print(f"  admin token  {shelf.catalog / 'admin.token'}")
    if not once:
        print("\nServing until Ctrl-C.", flush=True)
        signal.pause()


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__.split("\n")[0])
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="ingest these instead of a generated corpus"
    )
    parser.add_argument("--once", action="store_true", help="end and clean up instead of serving until Ctrl-C")
    arguments = parser.parse_args()
    for path in arguments.files:
        if not path.exists():
            print(f"demo: there is no file {path}.", file=sys.stderr)
            return 2
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = base / f"openshelf-demo-{os.getpid()}"
    home.mkdir(parents=True, mode=0o700)
    shelf = Shelf(home)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.monotonic()
    try:
        run(shelf, [path.resolve() for path in arguments.files], arguments.once)
        print(f"\nDone in {time.monotonic() - started:.1f} s; cleaning up.")
    except DemoFailed as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopping and cleaning up.")
    finally:
        shelf.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
