"""The catalog's client library: the only way in which the other packages talk to a catalog."""

from catalog.client.client import Client
from catalog.client.errors import (
    BadAnswer,
    CatalogError,
    CatalogFailure,
    CatalogFull,
    CatalogUnreachable,
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    ReadFailed,
    RedirectRefused,
    TooManyRequests,
    Unauthorised,
)
from catalog.client.models import (
    Attachment,
    DraftAbout,
    DraftFile,
    FileInfo,
    ReleaseInfo,
    TokenInfo,
    UploadedObject,
)

__all__ = [
    "Attachment",
    "BadAnswer",
    "CatalogError",
    "CatalogFailure",
    "CatalogFull",
    "CatalogUnreachable",
    "Client",
    "Conflict",
    "DraftAbout",
    "DraftFile",
    "FileInfo",
    "Forbidden",
    "InvalidRequest",
    "NotFound",
    "ReadFailed",
    "RedirectRefused",
    "ReleaseInfo",
    "TokenInfo",
    "TooManyRequests",
    "Unauthorised",
    "UploadedObject",
]
