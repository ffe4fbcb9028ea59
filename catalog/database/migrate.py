"""Bring a database to the newest schema."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.script.revision import ResolutionError
from alembic.util import CommandError
from sqlalchemy import Engine

from openshelf.errors import OpenshelfError


def configuration() -> Config:
    """Alembic's configuration for the packaged steps."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config


def head_revision() -> str | None:
    """The newest step."""
    return ScriptDirectory.from_config(configuration()).get_current_head()


def migrate(engine: Engine) -> None:
    """Run the steps that are missing, in one transaction."""
    config = configuration()
    with engine.execution_options(writes=True).begin() as connection:
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except (CommandError, ResolutionError) as error:
            raise OpenshelfError(
                "newer_database",
                "The database was written by a newer version of openshelf",
                "Upgrade openshelf, or restore the backup made before the upgrade.",
            ) from error
