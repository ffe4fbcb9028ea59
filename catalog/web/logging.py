"""Structured logs: one JSON object a line on stderr, or readable lines on a terminal. Never a token, never a query."""

from __future__ import annotations

import logging
import sys

import structlog


def configure(level: str) -> None:
    """Write records of ``level`` (debug, info, warning, error) and above to stderr."""
    number = logging.getLevelNamesMapping()[level.upper()]
    terminal = sys.stderr.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Tracebacks without local variables: those may hold tokens or data.
    ending: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if terminal
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(ensure_ascii=False)]
    )
    structlog.configure(
        processors=[*shared, *ending],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(number)
    # The request frame writes its own line without the query; boto's debug lines hold signatures.
    logging.getLogger("uvicorn.access").disabled = True
    logging.getLogger("alembic").setLevel(max(number, logging.WARNING))
    for chatty in ("botocore", "boto3", "urllib3", "s3transfer"):
        logging.getLogger(chatty).setLevel(max(number, logging.INFO))
