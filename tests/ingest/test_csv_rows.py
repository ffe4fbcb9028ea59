from __future__ import annotations

import json
from typing import Any

import pytest

from ingest.decode import Encoding
from ingest.readers.csv_rows import guess_delimiter, read_csv
from ingest.rejects import Reason, Reject
from tests.support.shared_data import shared


def read(
    data: bytes, delimiter: str = ",", encoding: Encoding = Encoding.UTF_8
) -> tuple[list[Any], list[int], list[Reject], bool]:
    batches = list(read_csv([data], encoding, delimiter))
    return (
        [record for batch in batches for record in batch.records],
        [line for batch in batches for line in batch.lines],
        [reject for batch in batches for reject in batch.rejects],
        any(batch.truncated for batch in batches),
    )


SPECTRUM = "comma_in_quotes empty empty_crlf escaped_quotes json newlines quotes_and_newlines simple simple_crlf utf8"


@pytest.mark.parametrize("name", SPECTRUM.split())
def test_csv_spectrum_reads_as_its_json_says(name: str) -> None:
    expected = json.loads(shared("csv-spectrum", "json", f"{name}.json").read_bytes())
    records, _, rejects, truncated = read(shared("csv-spectrum", "csvs", f"{name}.csv").read_bytes())
    assert (records, rejects, truncated) == (expected, [], False)


def test_a_line_is_where_the_record_begins() -> None:
    records, lines, _, _ = read(b'a,b\n1,"x\ny\nz"\n\n2,w\n')
    assert records == [{"a": "1", "b": "x\ny\nz"}, {"a": "2", "b": "w"}]
    assert lines[0] == 2
    assert lines[1] == 6


def test_a_line_end_inside_quotes_is_kept_as_it_is() -> None:
    assert read(b'a\r\n"x\r\ny"\r\n')[0] == [{"a": "x\r\ny"}]


def test_records_of_the_wrong_width_are_rejected() -> None:
    records, _, rejects, _ = read(b"a,b\n1\n1,2\n1,2,3\n")
    assert records == [{"a": "1", "b": "2"}]
    assert rejects == [Reject(2, 4, 2, Reason.WRONG_COLUMNS), Reject(4, 10, 6, Reason.WRONG_COLUMNS)]


def test_bad_bytes_and_nul_cost_their_record_alone() -> None:
    records, _, rejects, _ = read(b"a\n\xff\nx\0y\nok\n")
    assert records == [{"a": "ok"}]
    assert [(reject.line, reject.reason) for reject in rejects] == [(2, Reason.UNDECODABLE), (3, Reason.NUL)]


def test_an_open_quote_at_the_end_is_a_cut_file() -> None:
    records, _, rejects, truncated = read(b'a,b\n1,2\n3,"x')
    assert records == [{"a": "1", "b": "2"}]
    assert truncated
    assert [reject.reason for reject in rejects] == [Reason.TRUNCATED]


def test_a_stray_quote_is_malformed_and_the_next_record_is_read() -> None:
    records, _, rejects, _ = read(b'a,b\n"x"y,1\n2,3\n')
    assert records == [{"a": "2", "b": "3"}]
    assert [reject.reason for reject in rejects] == [Reason.MALFORMED_CSV]


def test_a_field_of_megabytes_is_read() -> None:
    assert len(read(b'a\n"' + b"x" * (8 << 20) + b'"\n')[0][0]["a"]) == 8 << 20


def test_gb18030_and_a_byte_order_mark_are_read() -> None:
    assert read("文本,标签\n你好,一\n".encode("gb18030"), encoding=Encoding.GB18030)[0] == [
        {"文本": "你好", "标签": "一"}
    ]
    assert read(b"\xef\xbb\xbfa\n1\n")[0] == [{"a": "1"}]


def test_columns_without_or_with_the_same_name_are_told_apart() -> None:
    assert read(b"a,,a\n1,2,3\n")[0] == [{"a": "1", "column_2": "2", "a_3": "3"}]


def test_the_delimiter_is_seen_in_the_header() -> None:
    assert [guess_delimiter(head, ".csv") for head in (b"a,b;c", b"a;b", b"a\tb", b"a")] == [",", ";", "\t", ","]
    assert guess_delimiter(b"a,b", ".tsv") == "\t"
