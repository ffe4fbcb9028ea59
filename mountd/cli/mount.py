"""``openshelf mount``: start the daemon and return when the mount answers."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from mountd import log, options, systemd
from mountd.fetch import proxies
from mountd.interfaces import MountConfig
from mountd.kernel.mounting import canonical, refuse_nesting
from mountd.orders import Orders
from mountd.warm import windows
from openshelf import settings
from openshelf.console import emit_json, say
from openshelf.errors import OpenshelfError, UsageError
from openshelf.units import format_size, parse_size

START_WITHIN_S = 30.0
_TOKEN_VARIABLE = "OPENSHELF_TOKEN"  # noqa: S105 (a variable's name)
_DAEMON = [sys.executable, "-m", "mountd.daemon"]


class TransportChoice(StrEnum):
    """Which way to the kernel."""

    AUTO = "auto"
    KERNEL = "kernel"
    LIBFUSE = "libfuse"


class MountFailed(OpenshelfError):
    """The daemon could not start."""


def mount(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", parser=Path, help="Empty folder to mount on, such as /public.")
    ],
    cache: Annotated[Path, typer.Option(help="Folder of the node's cache, on a fast local disk.")],
    cache_size: Annotated[str, typer.Option(metavar="SIZE", help="Upper limit of the cache, such as 500G.")],
    transport: Annotated[
        TransportChoice, typer.Option(help="kernel: /dev/fuse directly; libfuse: through fuse-python.")
    ] = TransportChoice.AUTO,
    fill: Annotated[
        str | None,
        typer.Option(
            metavar="eager|lazy", help="eager: reading any part of a file fetches the rest in the background."
        ),
    ] = None,
    proxies: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Site caches to ask first, such as 'http://a:3128|http://b:3128;DIRECT'."),
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(metavar="RATES", help="Most bytes a second, by time of day: '08:00-20:00=200M,1G'."),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve Prometheus text there, such as 127.0.0.1:9469.")
    ] = None,
    more_caches: Annotated[
        list[str] | None, typer.Option("--more-cache", metavar="DIR", help="A further disk for cached objects.")
    ] = None,
    groups: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Which group may enter each restricted collection.")
    ] = None,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay, and log to stderr too.")] = False,
    catalog: Annotated[str | None, typer.Option(metavar="URL", help="The catalog's address.")] = None,
    catalog_key: Annotated[
        str | None, typer.Option(metavar="FINGERPRINT", help="The catalog's key, where no token carries it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the mount's state as JSON.")] = False,
) -> None:
    """Mount the published releases read-only; returns when the mount answers.

    The token comes from the service credential "token", OPENSHELF_TOKEN or openshelf.toml. With the catalog out of
    reach, the last good state is mounted, and this says so. The daemon logs to CACHE/mountd.log.
    OPENSHELF_PASSTHROUGH=0 makes the daemon serve every read itself. Further options stand in [mount] of
    openshelf.toml; docs/operators.md lists them.

    Examples:

      openshelf mount /public --cache /nvme/openshelf --cache-size 500G

      openshelf mount ~/public --cache ~/.cache/openshelf --cache-size 20G --catalog http://127.0.0.1:8420
    """
    chosen = settings.load(catalog=catalog, token=systemd.credential("token", os.environ))
    config = MountConfig(
        mountpoint=canonical(directory),
        cache=canonical(cache),
        cache_size_bytes=parse_size(cache_size),
        catalog=chosen.catalog,
        catalog_key=catalog_key,
        token=chosen.token,
        options=options.load(
            {
                "fill": fill,
                "proxies": proxies,
                "bandwidth": bandwidth,
                "metrics": metrics,
                "groups": None if groups is None else str(canonical(groups)),
                "more_caches": tuple(str(canonical(Path(each))) for each in more_caches or ()),
            }
        ),
    )
    _check_options(config.options)
    _require_token(chosen)
    refuse_nesting(config.mountpoint, config.cache)  # before anything is created in the one or the other
    orders = Orders(config, transport.value, foreground)
    if foreground:
        _become_daemon(orders)
    state = _start_daemon(orders)
    if as_json:
        emit_json(state)
        return
    say(
        f"{config.mountpoint}: {state['releases']} releases, feed position {state['feed_serial']}, "
        f"transport {state['transport']}, {'passthrough' if state['passthrough'] else 'served by the daemon'}, "
        f"cache {format_size(state['cache_bytes'])} of {format_size(config.cache_size_bytes)}"
    )
    if not state["passthrough"] and state["transport"] == "kernel":
        say(f"warning: no passthrough: {state['passthrough_reason']}")
    if not state["online"]:
        say(f"warning: offline, from the last good state: {state['reason'] or 'the catalog cannot be reached'}")


def _check_options(chosen: options.Options) -> None:
    """UsageError for what only its user can read, now rather than in the daemon's log."""
    windows.parse(chosen.bandwidth)
    proxies.parse(chosen.proxies)
    if chosen.metrics:
        from mountd.metrics import address

        address(chosen.metrics)


def _require_token(chosen: settings.Settings) -> None:
    """Raise UsageError without a token: no catalog shows releases to a stranger."""
    if not chosen.token:
        raise UsageError(
            "no_token",
            f"No token is set for the catalog {chosen.catalog}",
            "Ask an administrator for one with the role node and set OPENSHELF_TOKEN.",
        )


def _environment() -> dict[str, str]:
    """The daemon's environment: ours without the token, and without threads that a fork would have to care for."""
    kept = {name: value for name, value in os.environ.items() if name != _TOKEN_VARIABLE}
    return kept | {"OPENBLAS_NUM_THREADS": "1"}


def _become_daemon(orders: Orders) -> None:
    """Replace this process by the daemon; its orders wait in a pipe (far smaller than the pipe's buffer)."""
    reading, writing = os.pipe()
    os.write(writing, orders.to_json())
    os.close(writing)
    os.dup2(reading, 0)
    os.close(reading)
    os.execve(_DAEMON[0], _DAEMON, _environment())  # noqa: S606 (our own interpreter)


def _start_daemon(orders: Orders) -> dict[str, Any]:
    """Start the daemon in a session of its own and wait for its word. Raises MountFailed."""
    config = orders.config
    deadline = time.monotonic() + START_WITHIN_S
    daemon = subprocess.Popen(
        _DAEMON,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_environment(),
        start_new_session=True,
        cwd="/",
    )
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    with daemon.stdout, daemon.stdin:
        daemon.stdin.write(orders.to_json())
        daemon.stdin.close()
        waiting = select.poll()
        waiting.register(daemon.stdout, select.POLLIN)
        if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
            daemon.send_signal(signal.SIGTERM)
            line = log.last_line(config.cache)
            raise MountFailed(
                "mount_timeout",
                f"{config.mountpoint} did not answer within {START_WITHIN_S:.0f} s: {line or 'the log is empty'}",
                f"See {config.cache / log.LOG_NAME}.",
            )
        answer = daemon.stdout.readline()
    if not answer:
        line = log.last_line(config.cache)
        raise MountFailed(
            "mount_failed",
            f"The daemon of {config.mountpoint} ended: {line or 'its log is empty'}",
            f"See {config.cache / log.LOG_NAME}.",
        )
    told = json.loads(answer)
    if "error" in told:
        daemon.wait()
        failure = told["error"]
        raise MountFailed(failure["code"], failure["message"], failure["hint"])
    daemon.returncode = 0  # it lives on; this process will not wait for it
    return dict(told)
