"""The object store: bytes named by their SHA-256, in a local folder or in S3."""

from catalog.objects.store import (
    DigestMismatch,
    ObjectDamaged,
    ObjectMissing,
    ObjectStore,
    ShortBody,
    StoredObject,
    StoreFull,
    StoreUnavailable,
    open_store,
)

__all__ = [
    "DigestMismatch",
    "ObjectDamaged",
    "ObjectMissing",
    "ObjectStore",
    "ShortBody",
    "StoreFull",
    "StoreUnavailable",
    "StoredObject",
    "open_store",
]
