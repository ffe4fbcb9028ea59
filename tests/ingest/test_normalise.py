from __future__ import annotations

import unicodedata

import pyarrow as pa
import pytest

from ingest.normalise import normalise_column, normalise_text
from tests.support.shared_data import shared

UNTOUCHED = (
    "你好，世界！（１２３）“引号”‘单’——……",
    "㎡ ① ㈱ ℃ Ｆｕｌｌ ｶﾅ",
    "\uf900\uf9d1\ufa0e 兼容汉字",
    "e\u0301 not composed, \u00e9 composed",
    "👨\u200d👩\u200d👧 \u0645\u06cc\u200c\u062e",
    "\u3000\u3000段首缩进",
    "a\u2028b\u2029c\u0085d",
    "𠮷野家 𪚥",
    "代码：\n\tif x:\n\t\treturn",
)


@pytest.mark.parametrize("text", UNTOUCHED)
def test_chinese_text_is_left_as_it_was_written(text: str) -> None:
    assert normalise_text(text) == text
    column, changed = normalise_column(pa.array([text], pa.large_string()))
    assert (column.to_pylist(), changed) == ([text], {})


def test_nfc_and_nfkc_would_have_changed_them() -> None:
    assert any(unicodedata.normalize("NFC", text) != text for text in UNTOUCHED)
    assert any(unicodedata.normalize("NFKC", text) != text for text in UNTOUCHED)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("一\r\n二\r三", "一\n二\n三"),
        ("a\x07b\x1b[0mc\x7f\x9f", "ab[0mc"),
        ("\ufeff零\u200b宽\u2060字\u00ad符", "零宽字符"),
        ("行尾 \t\n行尾\u3000\u00a0", "行尾\n行尾"),
        ("\n\n正文\n\n", "正文"),
        ("tab\tstays", "tab\tstays"),
    ],
)
def test_junk_goes(text: str, expected: str) -> None:
    assert normalise_text(text) == expected
    column, changed = normalise_column(pa.array(["x", text, "y"], pa.large_string()))
    assert column.to_pylist() == ["x", expected, "y"]
    assert (1 in changed) == (text != expected)


def test_normalising_twice_changes_nothing_more() -> None:
    for path in sorted(shared("laws").rglob("*.md"))[:50]:
        once = normalise_text(path.read_text("utf-8"))
        assert normalise_text(once) == once


def test_the_column_and_the_single_text_agree_on_naughty_strings() -> None:
    lines = shared("blns", "blns.txt").read_bytes().decode("utf-8").split("\n")
    column, _ = normalise_column(pa.array(lines, pa.large_string()))
    assert column.to_pylist() == [normalise_text(line) for line in lines]
