"""Errors as RFC 9457 problem details."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from catalog.database.engine import DatabaseFull
from catalog.names import InvalidPath
from catalog.objects import DigestMismatch, ShortBody, StoreFull, StoreUnavailable
from catalog.token_format import BadToken
from catalog.web.validation import explained, sentence
from openshelf.errors import OpenshelfError, UsageError

MEDIA_TYPE = "application/problem+json"
SHOWN_ERRORS = 20
"""Errors of one request's fields that are named."""


class Problem(OpenshelfError):
    """An error of the service with its HTTP status."""

    status = 400

    def __init__(self, code: str, message: str, hint: str = "", *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(code, message, hint)
        self.headers = dict(headers or {})


class BadRequest(Problem):
    """The request cannot be understood."""


class Unauthorized(Problem):
    """No token, or one that does not count."""

    status = 401

    def __init__(self, code: str, message: str, hint: str) -> None:
        super().__init__(code, message, hint, headers={"WWW-Authenticate": "Bearer"})


class Forbidden(Problem):
    """The caller may not do this."""

    status = 403


class NotFound(Problem):
    """There is no such thing, or none that the caller may know of."""

    status = 404


class RequestTimeout(Problem):
    """A body that does not go on."""

    status = 408


class Conflict(Problem):
    """The thing is in a state that does not allow this."""

    status = 409


class Gone(Problem):
    """A withdrawn release."""

    status = 410


class LengthRequired(Problem):
    """A body without a Content-Length."""

    status = 411


class TooLarge(Problem):
    """A body over the limit."""

    status = 413


class RangeUnsatisfiable(Problem):
    """A range that lies outside the object."""

    status = 416


class Unprocessable(Problem):
    """The request is understood, but its contents are wrong."""

    status = 422


_STATUS: tuple[tuple[type[OpenshelfError], int], ...] = (
    (DigestMismatch, 422),
    (InvalidPath, 422),
    (ShortBody, 400),
    (StoreFull, 507),
    (DatabaseFull, 507),
    (StoreUnavailable, 503),
    (BadToken, 401),
    (UsageError, 400),
)


def status_of(error: OpenshelfError) -> int:
    """The HTTP status that fits ``error``."""
    if isinstance(error, Problem):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


class FieldError(BaseModel):
    """What is wrong with one field of a request; never its value."""

    field: str
    message: str


class ProblemDetails(BaseModel):
    """The body of every error."""

    type: str = Field(examples=["about:blank"])
    title: str = Field(examples=["Conflict"])
    status: int = Field(examples=[409])
    detail: str
    code: str = Field(description="A stable identifier for programs", examples=["wrong_state"])
    hint: str = Field(description="What to do next; may be empty")
    instance: str = Field(description="The request's id", examples=["urn:openshelf:request:4f1c…"])
    errors: list[FieldError] | None = None


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's entry for errors with these statuses (401 and 500 are always among them)."""
    schema = {"$ref": "#/components/schemas/ProblemDetails"}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in sorted({401, 500, *statuses})
    }


def problem_response(
    request_id: str,
    status: int,
    code: str,
    detail: str,
    hint: str = "",
    *,
    headers: Mapping[str, str] | None = None,
    errors: Sequence[FieldError] | None = None,
) -> Response:
    """A problem as an HTTP response."""
    body = ProblemDetails(
        type="about:blank",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        hint=hint,
        instance=f"urn:openshelf:request:{request_id}",
        errors=list(errors) if errors else None,
    )
    return JSONResponse(body.model_dump(exclude_none=True), status, dict(headers or {}), media_type=MEDIA_TYPE)


def _request_id(request: Request) -> str:
    return str(request.scope.get("openshelf.request_id", "-"))


async def _on_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, OpenshelfError):
        raise error
    headers = error.headers if isinstance(error, Problem) else {}
    return problem_response(
        _request_id(request), status_of(error), error.code, error.message, error.hint, headers=headers
    )


async def _on_validation(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    found = error.errors()[:SHOWN_ERRORS]
    errors = [FieldError(field=".".join(str(part) for part in item["loc"]), message=explained(item)) for item in found]
    return problem_response(
        _request_id(request), 422, "invalid_request", sentence(found[0]), "Correct it and try again.", errors=errors
    )


async def _on_http(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
    detail = f"{request.method} {request.url.path[:200]}: {HTTPStatus(error.status_code).phrase}"
    hint = "The paths are listed in /v1/openapi.json." if error.status_code in (404, 405) else ""
    return problem_response(_request_id(request), error.status_code, code, detail, hint, headers=error.headers)


def install(app: FastAPI) -> None:
    """Make ``app`` answer every error as a problem."""
    app.add_exception_handler(OpenshelfError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)
