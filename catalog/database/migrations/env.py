"""Alembic's entry: runs the steps on the connection that :mod:`catalog.database.migrate` hands over."""

from alembic import context

from catalog.database.models import Base

context.configure(
    connection=context.config.attributes["connection"], target_metadata=Base.metadata, render_as_batch=True
)
context.run_migrations()
