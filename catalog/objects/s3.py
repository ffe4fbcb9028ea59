"""The object store in S3: ``PREFIX/sha256/ab/cd/<sha256>`` in one bucket.

Objects over 8 MiB go up in parts, each with its SHA-256, which the store compares; the upload is completed only when
the catalog's own digest of all bytes agrees, else aborted. A digest that is not known beforehand would have no key to
go to, so that such a body is spooled to a local file first. Endpoint, region and keys come from the usual AWS
environment (``AWS_ENDPOINT_URL_S3`` and so on).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from catalog.objects.local import Incoming
from catalog.objects.store import BodyCheck, ObjectMissing, StoredObject, StoreFull, StoreUnavailable
from openshelf.errors import OpenshelfError
from openshelf.units import MIB

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

PORTION_BYTES = 1 * MIB
MIN_PART_BYTES = 8 * MIB
MAX_PARTS = 10_000
PARTS_AT_ONCE = 4
ABANDONED_AFTER = timedelta(days=1)
"""An upload in parts that began this long ago is nobody's any more."""
_FULL_CODES = frozenset({"InsufficientStorage", "InsufficientCapacity", "QuotaExceeded", "XMinioStorageFull", "507"})
_MISSING_CODES = frozenset({"404", "NoSuchKey", "NotFound"})
_Failure = (BotoCoreError, ClientError)


def part_bytes(size: int) -> int:
    """The size of the parts of an object of ``size`` bytes: 8 MiB, or as much as 10,000 parts need, whole MiB."""
    needed = -(-size // MAX_PARTS)
    return max(MIN_PART_BYTES, -(-needed // MIB) * MIB)


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", "unknown"))


class S3Store:
    """Objects in ``bucket`` below ``prefix``; ``spool`` is a local folder for bodies whose digest is not announced."""

    def __init__(self, bucket: str, prefix: str, spool: Path) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._where = f"s3://{bucket}/{prefix}".rstrip("/")
        self._spool = Incoming(spool)
        self._client = _connect()
        try:
            self._check_bucket()
            self._sweep()
        except BaseException:
            self.close()
            raise

    def _check_bucket(self) -> None:
        try:
            self._client.head_bucket(Bucket=self._bucket)
        except NoCredentialsError as error:
            raise OpenshelfError(
                "no_store_keys",
                f"There are no keys for the object store {self._where}",
                "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_ENDPOINT_URL_S3 when it is not Amazon's).",
            ) from error
        except ClientError as error:
            if _code(error) in ("403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"):
                raise OpenshelfError(
                    "store_forbidden",
                    f"The object store {self._where} refuses the keys",
                    "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and that they may use the bucket.",
                ) from error
            if _code(error) in ("404", "NoSuchBucket"):
                raise OpenshelfError(
                    "no_bucket",
                    f"There is no bucket {self._bucket!r} in the object store",
                    "Create it, or correct --objects.",
                ) from error
            raise self._translated(error) from error
        except BotoCoreError as error:
            raise self._translated(error) from error

    def _sweep(self) -> None:
        """Abort uploads in parts that a crash left behind: their parts are stored, paid for and never seen."""
        with self._translating():
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self._bucket, Prefix=f"{self._prefix}sha256/"
            )
            for page in pages:
                for upload in page.get("Uploads", ()):
                    if datetime.now(UTC) - upload["Initiated"] > ABANDONED_AFTER:
                        self._client.abort_multipart_upload(
                            Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                        )

    def _key(self, sha256: str) -> str:
        return f"{self._prefix}sha256/{sha256[:2]}/{sha256[2:4]}/{sha256}"

    def _translated(self, error: Exception) -> OpenshelfError:
        """What an error of botocore means. Its own text is not shown: it may hold a signed address."""
        if isinstance(error, ClientError):
            if _code(error) in _FULL_CODES:
                return StoreFull(self._where)
            return StoreUnavailable(self._where, f"it answers {_code(error)}")
        return StoreUnavailable(self._where, f"no usable connection ({type(error).__name__})")

    @contextlib.contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except _Failure as error:
            raise self._translated(error) from error

    def put(self, stream_chunks: Iterable[bytes], size_bytes: int | None, expected_sha256: str | None) -> StoredObject:
        """See :meth:`catalog.objects.store.ObjectStore.put`."""
        check = BodyCheck(size_bytes, expected_sha256)
        portions = check.pass_through(stream_chunks)
        if size_bytes is None or expected_sha256 is None:
            with self._spool.file() as (sink, _):
                self._spool.write(sink, portions)
                stored = check.finish()
                sink.seek(0)
                if self.size(stored.sha256) != stored.size:
                    self._send(stored.sha256, stored.size, _portions_of(sink), lambda: stored)
                return stored
        if self.size(expected_sha256) == size_bytes:
            for _ in portions:
                pass  # hashed on the way: whoever sends an object must have it
            return check.finish()
        return self._send(expected_sha256, size_bytes, portions, check.finish)

    def _send(
        self, sha256: str, size: int, portions: Iterable[bytes], finish: Callable[[], StoredObject]
    ) -> StoredObject:
        """Upload ``portions``, visible only once ``finish`` has found every byte right."""
        if size <= MIN_PART_BYTES:
            body = b"".join(portions)
            stored = finish()
            with self._translating():
                self._client.put_object(
                    Bucket=self._bucket,
                    Key=self._key(sha256),
                    Body=body,
                    ChecksumSHA256=_base64(bytes.fromhex(stored.sha256)),
                )
            return stored
        key = self._key(sha256)
        with self._translating():
            upload_id = self._client.create_multipart_upload(
                Bucket=self._bucket, Key=key, ChecksumAlgorithm="SHA256", ContentType="application/octet-stream"
            )["UploadId"]
        try:
            parts = self._send_parts(key, upload_id, _cut(portions, part_bytes(size)))
            stored = finish()
            with self._translating():
                self._client.complete_multipart_upload(
                    Bucket=self._bucket, Key=key, UploadId=upload_id, MultipartUpload={"Parts": parts}
                )
        except BaseException:
            # Best effort: the error on its way is the one to show, and the next start sweeps what stays.
            with contextlib.suppress(*_Failure):
                self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload_id)
            raise
        if (there := self.size(sha256)) != size:
            raise StoreUnavailable(self._where, f"object {sha256} has {there} bytes there instead of {size}")
        return stored

    def _send_parts(self, key: str, upload_id: str, parts: Iterable[bytes]) -> list[CompletedPartTypeDef]:
        def send(number: int, body: bytes) -> CompletedPartTypeDef:
            checksum = _base64(hashlib.sha256(body).digest())
            with self._translating():
                answer = self._client.upload_part(
                    Bucket=self._bucket,
                    Key=key,
                    UploadId=upload_id,
                    PartNumber=number,
                    Body=body,
                    ChecksumSHA256=checksum,
                )
            return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumSHA256": checksum}

        done: list[CompletedPartTypeDef] = []
        flying: deque[Future[CompletedPartTypeDef]] = deque()
        with ThreadPoolExecutor(PARTS_AT_ONCE, thread_name_prefix="s3-part") as workers:
            for number, body in enumerate(parts, start=1):
                if len(flying) == PARTS_AT_ONCE:
                    done.append(flying.popleft().result())
                flying.append(workers.submit(send, number, body))
            done.extend(future.result() for future in flying)
        return done

    def open(self, sha256: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        """See :meth:`catalog.objects.store.ObjectStore.open`."""
        if length == 0:
            return
        end = "" if length is None else str(start + length - 1)
        try:
            if length is None and start == 0:  # an empty object has no range at all
                answer = self._client.get_object(Bucket=self._bucket, Key=self._key(sha256))
            else:
                answer = self._client.get_object(
                    Bucket=self._bucket, Key=self._key(sha256), Range=f"bytes={start}-{end}"
                )
            left = answer["ContentLength"] if length is None else length
            with contextlib.closing(answer["Body"]) as body:
                while left and (portion := body.read(min(PORTION_BYTES, left))):
                    left -= len(portion)
                    yield portion
        except ClientError as error:
            if _code(error) in _MISSING_CODES:
                raise ObjectMissing(sha256) from error
            if _code(error) != "InvalidRange":
                raise self._translated(error) from error
            left = length or 0
        except BotoCoreError as error:
            raise self._translated(error) from error
        if left:
            raise StoreUnavailable(self._where, f"object {sha256} ends {left} bytes early")

    def size(self, sha256: str) -> int | None:
        """See :meth:`catalog.objects.store.ObjectStore.size`."""
        try:
            return self._client.head_object(Bucket=self._bucket, Key=self._key(sha256))["ContentLength"]
        except ClientError as error:
            if _code(error) in _MISSING_CODES:
                return None
            raise self._translated(error) from error
        except BotoCoreError as error:
            raise self._translated(error) from error

    def presign(self, sha256: str, ttl_s: int = 60) -> str | None:
        """An address signed with Signature Version 4 that reads this one object for ``ttl_s`` seconds."""
        with self._translating():
            return self._client.generate_presigned_url(
                "get_object", Params={"Bucket": self._bucket, "Key": self._key(sha256)}, ExpiresIn=ttl_s
            )

    def delete(self, sha256: str) -> None:
        """See :meth:`catalog.objects.store.ObjectStore.delete`."""
        with self._translating():
            self._client.delete_object(Bucket=self._bucket, Key=self._key(sha256))

    def hosts(self) -> list[str]:
        """The one ``host:port`` of presigned addresses."""
        parts = urlsplit(self.presign("0" * 64) or "")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = parts.hostname or ""
        return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}"]

    def check(self) -> None:
        """See :meth:`catalog.objects.store.ObjectStore.check`."""
        with self._translating():
            self._client.head_bucket(Bucket=self._bucket)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _connect() -> S3Client:
    session = boto3.Session()
    own_endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    # Only Amazon's own names have a sub-domain for each bucket.
    style: Literal["path", "auto"] = "path" if own_endpoint else "auto"
    config = Config(
        signature_version="s3v4",  # presigning falls back to Signature Version 2 otherwise
        connect_timeout=5,
        read_timeout=60,
        retries={"total_max_attempts": 4, "mode": "standard"},
        max_pool_connections=32,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": style},
    )
    try:
        return session.client("s3", region_name=session.region_name or "us-east-1", config=config)
    except (BotoCoreError, ValueError) as error:
        raise OpenshelfError(
            "bad_store_settings",
            f"The AWS settings are not usable: {error}",
            "Correct AWS_ENDPOINT_URL_S3 and the rest.",
        ) from error


def _portions_of(source: BinaryIO) -> Iterator[bytes]:
    while portion := source.read(PORTION_BYTES):
        yield portion


def _cut(portions: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of ``size`` bytes, the last one shorter."""
    piece = bytearray()
    for portion in portions:
        piece += portion
        while len(piece) >= size:
            yield bytes(piece[:size])
            del piece[:size]
    if piece:
        yield bytes(piece)
