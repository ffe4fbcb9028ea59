"""Borders, offsets and slices of the columnar scan."""

from __future__ import annotations

import pickle
import random
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compliance.detect import Detector
from compliance.detect.shadow import folded, foldings, joined
from compliance.findings import FINDINGS_SCHEMA
from openshelf.errors import OpenshelfError, UsageError
from tests.compliance.planted import FULL_WIDTH, MAKERS, corpus

DETECTOR = Detector()
MOBILE = "13812345678"


def spans(column: pa.Array | pa.ChunkedArray, detector: Detector = DETECTOR) -> list[tuple[int, int, int, str]]:
    rows = detector.scan(column).to_pylist()
    return [(row["row"], row["start"], row["end"], row["entity"]) for row in rows]


def test_a_value_at_the_first_and_at_the_last_character_of_a_document_is_found() -> None:
    column = pa.array([f"{MOBILE}是我", f"我是{MOBILE}", MOBILE])
    assert spans(column) == [(0, 0, 11, "mobile"), (1, 2, 13, "mobile"), (2, 0, 11, "mobile")]


def test_digits_of_neighbouring_documents_never_join() -> None:
    assert spans(pa.array(["1381234", "5678", "110105194912", "31002X", "a@", "b.com"])) == []
    assert spans(pa.array(["9", MOBILE, "9"])) == [(1, 0, 11, "mobile")]


def test_nulls_and_empty_documents_keep_their_rows() -> None:
    assert spans(pa.array([None, "", MOBILE, None, "", MOBILE])) == [(2, 0, 11, "mobile"), (5, 0, 11, "mobile")]
    assert DETECTOR.scan(pa.array([], pa.large_string())).num_rows == 0
    assert DETECTOR.scan(pa.chunked_array([], pa.string())).schema == FINDINGS_SCHEMA
    assert DETECTOR.scan(pa.array([None, None], pa.string())).num_rows == 0


def test_rows_count_through_chunks_and_slices_of_an_array() -> None:
    chunk = pa.array(["x", MOBILE, "y"], pa.large_string())
    column = pa.chunked_array([chunk, chunk.slice(3), chunk.slice(1)])
    assert [row for row, *_ in spans(column)] == [1, 3]
    assert spans(chunk.slice(1, 1)) == [(0, 0, 11, "mobile")]
    assert spans(pa.array(["a" * 50, "é" + MOBILE]).slice(1)) == [(0, 1, 12, "mobile")]


@pytest.mark.parametrize("slice_bytes", [1, 30, 100, 1 << 20])
def test_slices_change_nothing(slice_bytes: int) -> None:
    texts, _ = corpus(3, 200)
    assert spans(pa.array(texts), Detector(slice_bytes=slice_bytes)) == spans(pa.array(texts))


def test_offsets_count_bytes_and_code_points_of_mixed_text() -> None:
    text = "😀𠀀é中１３８１２３４５６７８尾" + MOBILE
    first, second = DETECTOR.scan(pa.array(["中", text])).to_pylist()
    assert (first["row"], first["start"], first["end"]) == (1, 4, 15)
    assert (first["start_byte"], first["end_byte"]) == (4 + 4 + 2 + 3, 4 + 4 + 2 + 3 + 33)
    assert (second["start"], second["end"]) == (16, 27)
    assert text.encode()[second["start_byte"] : second["end_byte"]] == MOBILE.encode()


def test_the_fold_is_one_character_for_one_character() -> None:
    text = "".join(foldings()) + "中😀，。a1" + "".join(foldings())
    shadow = folded(joined(pa.array([text, "×", ""], pa.large_string()), pa.array([0, 1, 2]).to_numpy()))
    start, end = int(shadow.starts[0]), int(shadow.ends[0])
    assert bytes(shadow.buffer[start:end]).decode() == "".join(foldings().get(char, char) for char in text)
    assert bytes(shadow.buffer[shadow.starts[1] : shadow.ends[1]]) == b"X"
    assert shadow.starts[2] == shadow.ends[2]


def test_a_found_value_slices_back_from_both_kinds_of_offset() -> None:
    texts, _ = corpus(11, 2_000, wide=0.4)
    rows = DETECTOR.scan(pa.array(texts, pa.string())).to_pylist()
    assert len(rows) > 1_000
    for row in rows:
        text = texts[row["row"]]
        raw = text.encode()[row["start_byte"] : row["end_byte"]]
        assert raw.decode() == text[row["start"] : row["end"]]


def test_rows_and_places_are_in_order_and_disjoint() -> None:
    texts, _ = corpus(5, 2_000, wide=0.4)
    places = [(row, start, end) for row, start, end, _ in spans(pa.array(texts))]
    assert places == sorted(places)
    assert all(a[2] <= b[1] for a, b in pairwise(places) if a[0] == b[0])


han = st.text(alphabet="的一是在不了有和人，。😀𠀀é\n", max_size=30)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(han, st.sampled_from(sorted(MAKERS)), st.integers(0, 2**32), st.booleans(), han),
        min_size=1,
        max_size=8,
    )
)
def test_every_planted_value_is_found_where_it_was_put(parts: list[tuple[str, str, int, bool, str]]) -> None:
    texts, expected = [], []
    for row, (before, entity, seed, wide, after) in enumerate(parts):
        value = MAKERS[entity](random.Random(seed))
        value = value.translate(FULL_WIDTH) if wide else value
        texts.append(before + value + after)
        expected.append((row, len(before), len(before) + len(value), entity))
    assert [span for span in spans(pa.array(texts)) if span in expected] == expected


@settings(max_examples=80, deadline=None)
@given(st.lists(st.one_of(st.none(), st.text(max_size=60)), max_size=6))
def test_any_text_scans_and_offsets_stay_inside(texts: list[str | None]) -> None:
    clean = [text.encode("utf-8", "replace").decode() if text else text for text in texts]
    for row in DETECTOR.scan(pa.array(clean, pa.large_string())).to_pylist():
        text = clean[row["row"]] or ""
        assert 0 <= row["start"] < row["end"] <= len(text)


def test_a_detector_travels_to_another_process() -> None:
    copy = pickle.loads(pickle.dumps(Detector(["mobile"], slice_bytes=100)))
    assert copy.entities == ("mobile",)
    assert spans(pa.array([MOBILE, "a@example.com"]), copy) == [(0, 0, 11, "mobile")]


def test_wrong_use_is_named() -> None:
    with pytest.raises(UsageError, match="'phone' is not an entity"):
        Detector(["phone"])
    with pytest.raises(OpenshelfError, match="not in int64"):
        DETECTOR.scan(pa.array([1]))


def test_a_page_of_full_width_digits_keeps_its_neighbours() -> None:
    page = "１２" * 5_000
    assert spans(pa.array([MOBILE, page, "１３８１２３４５６７８", page, MOBILE])) == [
        (0, 0, 11, "mobile"),
        (2, 0, 11, "mobile"),
        (4, 0, 11, "mobile"),
    ]


def test_a_document_with_many_findings_is_scanned_in_one_go() -> None:
    text = "，".join(f"138{number:08d}" for number in range(12_345_678, 12_345_678 + 20_000))
    rows = spans(pa.array(["x", text]))
    assert len(rows) == 20_000
    assert rows[-1] == (1, 19_999 * 12, 19_999 * 12 + 11, "mobile")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("电话：138\u200b0013\u200b8000。", "138\u200b0013\u200b8000"),
        ("\ufeff１３８\u200b００１３８０００\u200b！", "１３８\u200b００１３８０００"),
        ("👨\u200d👩文\u200b13800138000\u200b文", "13800138000"),
        ("x\u200b a\u200db@exam\u00adple.com.", "a\u200db@exam\u00adple.com"),
        ("文\u202e110101\u206019900307\ufeff8515\u202c", "110101\u206019900307\ufeff8515"),
        ("来自 8.8\u200b.4.4", "8.8\u200b.4.4"),
        ("邮箱 a@example.com.", "a@example.com"),
        ("邮箱 <a@example.com>,", "a@example.com"),
        ("电话：8613800138000", "8613800138000"),
        ("86-138 0013 8000号", "86-138 0013 8000"),
        ("(86)13800138000", "(86)13800138000"),
    ],
)
def test_a_value_is_found_whole_and_nothing_beside_it(text: str, value: str) -> None:
    texts = ["文\u200b", text, "1\u200b2"]
    (finding,) = Detector().scan(pa.array(texts, pa.large_string())).to_pylist()
    assert finding["row"] == 1
    assert text[finding["start"] : finding["end"]] == value
    assert text.encode()[finding["start_byte"] : finding["end_byte"]].decode() == value
