"""``/v1/ledger``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from catalog.audit import ledger, verify
from catalog.audit.schemas import LedgerEntryInfo, LedgerPage, LedgerState
from catalog.web.dependencies import AUDITORS, CallerDep, RuntimeDep, require
from catalog.web.problems import documented

router = APIRouter(tags=["ledger"])


@router.get("/v1/ledger", operation_id="getLedger", responses=documented(403, 422), summary="Who did what")
def get_ledger(
    caller: CallerDep,
    runtime: RuntimeDep,
    after: Annotated[int, Query(ge=0, lt=2**62)] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> LedgerPage:
    """Entries after a number, for auditors and administrators."""
    require(caller, AUDITORS, "read the ledger")
    with runtime.database.read() as session:
        return LedgerPage(
            entries=[
                LedgerEntryInfo(
                    sequence=row.sequence,
                    entry=ledger.parsed(row),
                    previous=row.previous.hex(),
                    hash=row.hash.hex(),
                )
                for row in ledger.page(session, after, limit)
            ]
        )


@router.get(
    "/v1/ledger/verification", operation_id="verifyLedger", responses=documented(403), summary="Check the ledger"
)
def verify_ledger(caller: CallerDep, runtime: RuntimeDep) -> LedgerState:
    """Recomputes every hash; compares the end with the head and with the signed checkpoint outside the database."""
    require(caller, AUDITORS, "check the ledger")
    return verify.check(runtime)
