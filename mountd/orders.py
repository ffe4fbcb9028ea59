"""What the processes behind a mount are told at their start: one JSON object over a pipe, tokens included, so that
nothing of it stands in an argument list or an environment.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mountd.interfaces import MountConfig
from mountd.options import Options

Transport = Literal["auto", "kernel", "libfuse"]


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
