"""Personal data that was planted is nowhere but in the source file; tokens are nowhere but with their owners."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow.parquet as pq

from tests.e2e.shelf import running_shelf

MOBILE = "13900001234"
EMAIL = "wang.planted@example.cn"
IN_REJECT = "13700005678"


def luhn(body: str) -> str:
    total = sum(
        sum(divmod(int(digit) * 2, 10)) if place % 2 == 0 else int(digit) for place, digit in enumerate(body[::-1])
    )
    return body + str(-total % 10)


def identity(body: str) -> str:
    weights = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
    return body + "10X98765432"[sum(int(digit) * weight for digit, weight in zip(body, weights, strict=True)) % 11]


def every_byte(folder: Path) -> bytes:
    """All bytes below ``folder``, Parquet columns decoded and gzip unpacked, names included."""
    found = []
    for path in sorted(folder.rglob("*")):
        found.append(str(path).encode())
        if not path.is_file():
            continue
        data = path.read_bytes()
        found.append(data)
        if data[:4] == b"PAR1":
            table = pq.read_table(path)
            found.append(json.dumps(table.to_pylist(), ensure_ascii=False, default=str).encode())
        if data[:2] == b"\x1f\x8b":
            found.append(gzip.decompress(data))
    return b"\n".join(found)


def test_a_planted_value_is_nowhere_but_in_the_source(tmp_path: Path) -> None:
    card, person = luhn("622202000000123456"), identity("11010119900307000")
    values = [MOBILE, person, EMAIL, card, IN_REJECT]
    source = tmp_path / "source.jsonl"
    rows = [
        {"id": MOBILE, "text": f"联系我{MOBILE}吧。", "contact": EMAIL},
        {"id": "r2", "text": f"身份证{person}，卡号{card}。", "phones": [int(MOBILE)]},
        {"id": "r3", "text": "１３９００００１２３４是全角的。", "note": {"deep": [f"寄到{EMAIL}"]}},
    ]
    bad = [
        f'{{"id": "x", "text": "电话{IN_REJECT}"'.encode(),
        f'{{"id": "y", "text": "\\ud800 {IN_REJECT}"}}'.encode(),
        f"不是对象 {IN_REJECT}".encode(),
        f'["{IN_REJECT}"]'.encode(),
        b'{"id": "z", "text": "' + IN_REJECT.encode() + b'\x00"}',
    ]
    good = [json.dumps(row, ensure_ascii=False).encode() for row in rows]
    source.write_bytes(b"\n".join(good + bad) + b"\n")

    with running_shelf(tmp_path / "home") as shelf:
        release = "datasets/leak/one@1.0"
        arguments = ["--to", "datasets/leak/one", "--version", "1.0", "--licence", "MIT", "--json"]
        done = shelf.ok("curator", "ingest", source, *arguments)
        figures = done.json
        assert (figures["rows_in"], figures["rows_out"], figures["rejected"]) == (8, 3, 5)
        scanned = shelf.ok(None, "scan", source, "--findings", tmp_path / "findings.parquet", "--json")
        streamed = shelf.ok(None, "scan", source, "--findings", "-")
        report = shelf.ok("curator", "show", release, "--report")
        shelf.publish(release)
        point = shelf.mount()
        mounted = every_byte(point)
        shelf.umount(point)
        shelf.stop_catalog()
        printed = "".join(out.stdout + out.stderr for out in (done, scanned, streamed, report)).encode()
        everything = b"\n".join(
            [every_byte(shelf.home), every_byte_of(tmp_path / "findings.parquet"), mounted, printed]
        )
        for value in [*values, "１３９００００１２３４"]:
            assert value.encode() not in everything, f"{value[:3]}… leaked"
        assert "<手机号_1>".encode() in everything
        for role, token in shelf.tokens.items():
            secret = token[-43:].encode()
            where = every_byte(shelf.home)
            if role == "administrator":
                where = where.replace((shelf.data / "admin.token").read_bytes(), b"")
            assert secret not in where, f"the {role}'s token is stored in the clear"


def every_byte_of(parquet: Path) -> bytes:
    return parquet.read_bytes() + json.dumps(pq.read_table(parquet).to_pylist(), default=str).encode()
