from __future__ import annotations

import codecs
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from ingest.decode import Encoding
from ingest.readers.batch import BATCH_BYTES, MAX_RECORD_BYTES
from ingest.readers.lines import read_lines
from ingest.rejects import Reason, Reject
from tests.support.shared_data import shared


def read(
    data: bytes, encoding: Encoding = Encoding.UTF_8, size: int = 1 << 20
) -> tuple[list[Any], list[int], list[Reject], bool]:
    blocks = [data[at : at + size] for at in range(0, len(data), size)]
    records: list[Any] = []
    lines: list[int] = []
    rejects: list[Reject] = []
    truncated = False
    for batch in read_lines(blocks, encoding):
        records += batch.records
        lines += batch.lines
        rejects += batch.rejects
        truncated = truncated or batch.truncated
    return records, lines, rejects, truncated


def reasons(data: bytes, encoding: Encoding = Encoding.UTF_8) -> list[tuple[int, Reason]]:
    return [(reject.line, reject.reason) for reject in read(data, encoding)[2]]


def test_lines_are_numbered_from_one_and_blank_lines_keep_their_number() -> None:
    records, lines, rejects, _ = read(b'{"a":1}\n\n  \r\n{"a":2}')
    assert (records, lines, rejects) == ([{"a": 1}, {"a": 2}], [1, 4], [])


def test_a_missing_final_newline_loses_nothing() -> None:
    records, _, rejects, truncated = read(b'{"a":1}\n{"a":2}')
    assert (len(records), rejects, truncated) == (2, [], False)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\r", "\v", "\f", "\x1c"])
def test_only_a_newline_ends_a_line(separator: str) -> None:
    text = json.dumps({"text": f"甲{separator}乙"}, ensure_ascii=False)
    if ord(separator) < 0x20:
        text = json.dumps({"text": f"甲{separator}乙"})
    records, lines, rejects, _ = read(text.encode() + b"\n" + b'{"text":"x"}\n')
    assert records[0]["text"] == f"甲{separator}乙"
    assert (lines, rejects) == ([1, 2], [])


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    assert read(codecs.BOM_UTF8 + b'{"a":1}\n')[0] == [{"a": 1}]


@pytest.mark.parametrize("encoding", [Encoding.UTF_16_LE, Encoding.UTF_16_BE])
def test_utf16_with_a_mark_is_read(encoding: Encoding) -> None:
    data = ("\ufeff" + '{"a":"上海𠮷"}\n{"a":"二"}').encode(encoding.value)
    assert read(data, encoding, size=5)[0] == [{"a": "上海𠮷"}, {"a": "二"}]


def test_half_a_pair_in_utf16_rejects_its_line_alone() -> None:
    line = '{"a":"'.encode("utf-16-le") + b"\x00\xd8" + '"}\n{"a":"好"}\n'.encode("utf-16-le")
    data = codecs.BOM_UTF16_LE + line
    records, _, rejects, _ = read(data, Encoding.UTF_16_LE)
    assert records == [{"a": "好"}]
    assert [(reject.line, reject.reason) for reject in rejects] == [(1, Reason.UNDECODABLE)]


def test_gb18030_lines_keep_their_byte_positions() -> None:
    first = '{"a":"㐂好"}'.encode("gb18030")
    data = first + b"\n" + b'{"a":"\xff"}' + b"\n" + first + b"\n"
    records, lines, rejects, _ = read(data, Encoding.GB18030)
    assert records == [{"a": "㐂好"}] * 2
    assert lines == [1, 3]
    assert rejects == [Reject(2, len(first) + 1, 9, Reason.UNDECODABLE)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a":"x\0y"}', Reason.NUL),
        (b'{"a":"x\\u0000y"}', Reason.NUL),
        (b'{"a\\u0000":1}', Reason.NUL),
        (b'{"a":"\\udcb2"}', Reason.LONE_SURROGATE),
        (b'{"a":"\\ud83d"}', Reason.LONE_SURROGATE),
        (b'{"a":"\xed\xb2\xb2"}', Reason.UNDECODABLE),
        (b'{"a":"\xff"}', Reason.UNDECODABLE),
        (b'{"a":"\xc0\xaf"}', Reason.UNDECODABLE),
        (b'{"a":"\x1b$B$3$s"}', Reason.UNDECODABLE),
        (b'{"a":NaN}', Reason.NOT_A_NUMBER),
        (b'{"a":-Infinity}', Reason.NOT_A_NUMBER),
        (b'{"a":1,}', Reason.MALFORMED_JSON),
        (b"{'a':1}", Reason.MALFORMED_JSON),
        (b'{"a":01}', Reason.MALFORMED_JSON),
        (b"[" * 100_000, Reason.MALFORMED_JSON),
    ],
)
def test_a_bad_line_is_rejected_with_its_reason_and_its_neighbours_are_not(line: bytes, reason: Reason) -> None:
    good = b'{"a":"ok"}\n'
    records, lines, rejects, truncated = read(good + line + b"\n" + good)
    assert records == [{"a": "ok"}] * 2
    assert lines == [1, 3]
    assert rejects == [Reject(2, len(good), len(line), reason)]
    assert not truncated


def test_an_escaped_backslash_before_u0000_is_no_nul() -> None:
    assert read(b'{"a":"\\\\u0000"}\n')[0] == [{"a": "\\u0000"}]


def test_thirty_digit_integers_stay_exact() -> None:
    assert read(b'{"id":123456789012345678901234567890}\n')[0] == [{"id": 123456789012345678901234567890}]


def test_the_last_of_duplicate_keys_counts_also_beside_a_long_integer() -> None:
    assert read(b'{"a":1,"a":2}\n{"a":1,"b":11111111111111111111111,"a":2}\n')[0] == [
        {"a": 2},
        {"a": 2, "b": 11111111111111111111111},
    ]


def test_a_cut_tail_is_called_truncated() -> None:
    records, _, rejects, truncated = read(b'{"a":1}\n{"a":{"b":"x}')
    assert records == [{"a": 1}]
    assert truncated
    assert rejects == [Reject(2, 8, 13, Reason.TRUNCATED)]


def test_a_malformed_last_line_that_is_closed_is_not_called_truncated() -> None:
    _, _, rejects, truncated = read(b'{"a":1}\n{"a":}')
    assert not truncated
    assert [reject.reason for reject in rejects] == [Reason.MALFORMED_JSON]


def test_one_malformed_object_among_thousands_costs_one_row() -> None:
    rows = [json.dumps({"n": number}).encode() for number in range(5000)]
    rows[3210] = b'{"n": oops}'
    records, _, rejects, _ = read(b"\n".join(rows), size=997)
    assert len(records) == 4999
    assert [reject.line for reject in rejects] == [3211]


def _pieces(size: int, tail: bytes) -> Iterator[bytes]:
    yield b'{"a":"ok"}\n{"a":"'
    while size > 0:
        yield b"x" * min(size, 1 << 20)
        size -= 1 << 20
    yield b'"}\n' + tail


def test_a_fifty_megabyte_line_is_read_whole() -> None:
    size = 50 * 10**6
    records = [
        record for batch in read_lines(_pieces(size, b'{"a":"end"}\n'), Encoding.UTF_8) for record in batch.records
    ]
    assert [len(record["a"]) for record in records] == [2, size, 3]


def test_a_line_over_the_limit_is_skipped_and_counted() -> None:
    size = MAX_RECORD_BYTES
    batches = list(read_lines(_pieces(size, b'{"a":"end"}\n{"a":'), Encoding.UTF_8))
    rejects = [reject for batch in batches for reject in batch.rejects]
    assert [record["a"] for batch in batches for record in batch.records] == ["ok", "end"]
    assert rejects[0] == Reject(2, 11, size + 8, Reason.TOO_LONG)
    assert rejects[1] == Reject(4, 11 + size + 9 + 12, 5, Reason.TRUNCATED)


def test_skipping_a_long_line_does_not_hold_it_in_memory() -> None:
    tracemalloc.start()
    for _ in read_lines(_pieces(400 * 10**6, b""), Encoding.UTF_8):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * MAX_RECORD_BYTES


def test_batches_do_not_depend_on_block_sizes_for_their_content() -> None:
    data = b"".join(json.dumps({"n": number, "t": "文" * (number % 40)}).encode() + b"\n" for number in range(3000))
    expected = read(data, size=len(data))
    assert len(data) < BATCH_BYTES
    for size in (1, 7, 4096):
        assert read(data, size=size)[:3] == expected[:3]


@pytest.mark.parametrize("kind", ["y", "n"])
def test_json_test_suite_values_are_accepted_or_rejected_as_it_says(kind: str) -> None:
    for path in sorted(shared("jsontestsuite", "test_parsing").glob(f"{kind}_*.json")):
        data = path.read_bytes().strip(b"\n")
        if b"\n" in data:
            continue  # several lines are several values
        records, _, rejects, _ = read(data)
        if "null_in_key" in path.name or path.name == "y_string_null_escape.json":
            assert [reject.reason for reject in rejects] == [Reason.NUL]
        elif not data.strip(b" \n\xef\xbb\xbf"):
            assert (records, rejects) == ([], [])
        else:
            assert (len(records), len(rejects)) == ((1, 0) if kind == "y" else (0, 1)), path.name
