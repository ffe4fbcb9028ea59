"""Shapes of usage and of confirmations on the wire.

What nodes send is checked strictly: it ends in tables that people decide by. Nothing in it names a file or a command.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from catalog.names import parse_release
from openshelf.errors import UsageError

MAX_RECORDS = 1000
"""Records in one report."""
MAX_HOLDERS = 256
"""Holders that a confirmation names; ``open_files`` counts the files of all."""

_MOMENT = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,63}", re.ASCII)


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must have no control characters")
    return text


def _moment(text: str) -> str:
    try:
        if _MOMENT.fullmatch(text) and datetime.fromisoformat(text):
            return text
    except ValueError:
        pass  # a thirteenth month
    raise ValueError("must be a time in UTC like 2026-01-31T00:00:00Z")


def _release(text: str) -> str:
    try:
        return str(parse_release(text))
    except UsageError as error:
        raise ValueError("must be COLLECTION@VERSION") from error


def _claims(given: dict[str, str]) -> dict[str, str]:
    if not all(_VARIABLE.fullmatch(name) and value.isprintable() for name, value in given.items()):
        raise ValueError("must map names of variables to printable values")
    return given


Number = Annotated[int, Field(ge=0, lt=2**62)]
Uid = Annotated[int, Field(ge=0, lt=2**32)]
UtcMoment = Annotated[str, AfterValidator(_moment)]
ReleaseName = Annotated[str, Field(max_length=240), AfterValidator(_release)]
NodeName = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_printable)]
JobKind = Literal["kubernetes", "slurm", "container", "systemd", "none", "unknown"]
By = Literal["job", "user", "release", "node"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Job(_Strict):
    """Who opened: told by the opener's control group, which it cannot choose. ``claimed`` are variables of its
    environment, which it can."""

    kind: JobKind
    name: Annotated[str, Field(max_length=256), AfterValidator(_printable)] = Field(
        description="The pod's uid, the Slurm job and step, the unit, or the container; empty for none and unknown"
    )
    container: Annotated[str, Field(max_length=128), AfterValidator(_printable)] | None = None
    claimed: Annotated[
        dict[str, Annotated[str, Field(max_length=128)]], Field(max_length=8), AfterValidator(_claims)
    ] = {}


class ReportedUse(_Strict):
    """What one job opened of one release, so far. A later report of the same ``record`` takes the place of this one."""

    record: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    release: ReleaseName
    job: Job
    uid: Uid
    first: UtcMoment
    last: UtcMoment
    opens: Number
    files: Number = Field(description="Distinct files opened")
    bytes_declared: Number = Field(description="The sum of their sizes, whether or not they were read")
    exact: bool = Field(description="False: there were more files than the node could tell apart")

    @model_validator(mode="after")
    def _in_order(self) -> ReportedUse:
        if self.last < self.first:
            raise ValueError("must not end before it begins")
        return self


class UsageReport(_Strict):
    """What a node tells; empty ``records`` say that it lives."""

    node: NodeName
    feed_serial: Number = Field(description="The last event of the feed that the node has carried out in full")
    unrecorded: Number = Field(description="Opens that are known to be missing, in all")
    ends: bool = Field(False, description="The mount ends: nobody waits for this node until it reports again")
    records: Annotated[list[ReportedUse], Field(max_length=MAX_RECORDS)]


class Received(BaseModel):
    """How many records were received; sent again, the same ones change nothing."""

    received: int


class Use(BaseModel):
    """A record as it is shown. Times are the node's."""

    id: int
    release: str
    node: str
    principal: str = Field(description="Whose token the node has")
    job: Job
    uid: int
    first: str
    last: str
    opens: int
    files: int
    bytes_declared: int
    exact: bool


class UseList(BaseModel):
    """Records, the newest first."""

    records: list[Use]
    next: str | None


class UseGroup(BaseModel):
    """Records taken together. A file that was opened on two nodes, or by two jobs, counts twice."""

    key: str = Field(description="The job, uid, release or node")
    nodes: int
    releases: int
    uids: int
    first: str
    last: str
    opens: int
    files: int
    bytes_declared: int
    exact: bool


class UseGroups(BaseModel):
    """Groups, the last used first."""

    groups: list[UseGroup]
    more: bool = Field(description="There are more groups than were asked for")
    unrecorded: int = Field(description="Opens that nodes know to be missing, of whatever release")


class Holder(_Strict):
    """A process that still has files of a withdrawn release open or mapped."""

    pid: Annotated[int, Field(ge=1, lt=2**31)]
    uid: Uid
    job: Job
    files: Number


class Confirmation(_Strict):
    """What a node did when a release was withdrawn. It is sent again when the last holder is gone."""

    node: NodeName
    release: ReleaseName
    policy: Literal["drain", "revoke"]
    done: UtcMoment
    objects_removed: Number
    bytes_removed: Number
    open_files: Number = Field(description="Files that are still open; 0: the last holder is gone")
    holders: Annotated[list[Holder], Field(max_length=MAX_HOLDERS)]


class ConfirmationInfo(BaseModel):
    """A confirmation as it is shown."""

    node: str
    principal: str
    policy: str
    done: str
    objects_removed: int
    bytes_removed: int
    open_files: int
    holders: list[Holder]
    released: str | None = Field(description="When the last holder was gone")
    received: str


class SilentNode(BaseModel):
    """A node that has not confirmed."""

    node: str
    principal: str
    last_seen: str
    lives: bool = Field(description="It was heard of lately; else it is unmounted or switched off")
    used: bool = Field(description="A job opened the release there")


class ConfirmationList(BaseModel):
    """Who has confirmed a withdrawal, and who has not."""

    release: str
    withdrawn: str
    confirmations: list[ConfirmationInfo]
    outstanding: list[SilentNode]
