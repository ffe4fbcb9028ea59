"""``python -m mountd.daemon``: the processes behind one mount, started by ``openshelf mount``.

Everything it needs comes as one JSON object over standard input, a pipe: no token ever stands in an argument list or
an environment. Its one line on standard output says how the start ended.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mountd import log
from mountd.cache.layout import Layout
from mountd.interfaces import MountConfig, Stack
from mountd.options import Options
from mountd.supervisor import Supervisor, Transport
from openshelf.errors import OpenshelfError

_logger = logging.getLogger(__name__)

PASSTHROUGH_VARIABLE = "OPENSHELF_PASSTHROUGH"
"""Set to 0, it switches passthrough off."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What the pipe carries."""

    config: MountConfig
    transport: Transport
    foreground: bool

    def to_json(self) -> bytes:
        """The orders as the bytes for the pipe."""
        config = self.config
        return json.dumps(
            {
                "mountpoint": str(config.mountpoint),
                "cache": str(config.cache),
                "cache_size_bytes": config.cache_size_bytes,
                "catalog": config.catalog,
                "catalog_key": config.catalog_key,
                "token": config.token,
                "options": dataclasses.asdict(config.options),
                "transport": self.transport,
                "foreground": self.foreground,
            }
        ).encode()

    @classmethod
    def from_json(cls, body: bytes) -> Orders:
        """The orders from the bytes of the pipe."""
        given = json.loads(body)
        config = MountConfig(
            mountpoint=Path(given["mountpoint"]),
            cache=Path(given["cache"]),
            cache_size_bytes=given["cache_size_bytes"],
            catalog=given["catalog"],
            catalog_key=given["catalog_key"],
            token=given["token"],
            options=Options.from_json(given["options"]),
        )
        return cls(config, given["transport"], given["foreground"])


def _build(config: MountConfig) -> Stack:
    from mountd.node import build

    return build(config)


def _preload() -> None:
    """Import what every worker needs before the first fork: a replacement then starts in milliseconds."""
    import mountd.node  # noqa: F401


def _tell(told: Mapping[str, Any]) -> None:
    """Print the one line for whoever started us, and let go of the pipe."""
    try:
        print(json.dumps(told, ensure_ascii=False), flush=True)
    except BrokenPipeError:
        _logger.warning("nobody waited for the mount to answer")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


def main() -> int:
    """Run until unmounted; the exit code."""
    orders = Orders.from_json(sys.stdin.buffer.read())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    cache = orders.config.cache
    try:
        Layout.prepare(cache)  # before anything is written there: in a folder of others, a log may be a link elsewhere
        log.configure(cache, foreground=orders.foreground)
    except OpenshelfError as error:
        _tell({"error": {"code": error.code, "message": error.message, "hint": error.hint}})
        return 1
    except OSError as error:
        _tell({"error": {"code": "bad_cache", "message": f"The cache {cache} cannot be used: {error}", "hint": ""}})
        return 1
    os.chdir("/")  # nothing of ours may lie inside the mount
    try:
        supervisor = Supervisor(
            orders.config,
            _build,
            _tell,
            transport=orders.transport,
            passthrough=os.environ.get(PASSTHROUGH_VARIABLE) != "0",
            preload=_preload,
        )
        return supervisor.run()
    except OpenshelfError as error:
        _logger.error("%s", error.line())
        _tell({"error": {"code": error.code, "message": error.message, "hint": error.hint}})
        return 1
    except Exception:
        _logger.exception("the mount failed")
        raise


if __name__ == "__main__":
    sys.exit(main())
