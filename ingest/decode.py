"""Which encoding a file is in, decided once per file, and turning its bytes into UTF-8.

Order, and why: a byte-order mark is believed; then strict UTF-8, because UTF-8 often decodes "fine" as GB18030 while
the reverse hardly ever happens; then GB18030 (which contains GBK and GB2312), strict and only when the result reads
like Chinese, because Big5, Shift JIS and EUC-KR often decode as GB18030 too. Everything else stays UTF-8, and its bad
lines are rejected one by one.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from enum import StrEnum

import numpy as np

from openshelf.units import MIB

SAMPLE_BYTES = 16 * MIB
"""How much of a file, after decompression, the decision looks at."""


class Encoding(StrEnum):
    """An encoding that ingest reads, by Python's name for it."""

    UTF_8 = "utf-8"
    GB18030 = "gb18030"
    UTF_16_LE = "utf-16-le"
    UTF_16_BE = "utf-16-be"


_MARKS = (
    (codecs.BOM_UTF8, Encoding.UTF_8),
    (codecs.BOM_UTF16_LE, Encoding.UTF_16_LE),
    (codecs.BOM_UTF16_BE, Encoding.UTF_16_BE),
)

_COMMON = frozenset(
    "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道行所然家种事成方"
    "多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实日军者意无力它与长把机十民第公此已工使"
    "情明性知全三又关点正业外将两高间由问很最重并物手应战向头文体政美相见被利什二等产或新己制身果加西斯月话合回特代内信表化"
    "老给世位次度门任常先海通教儿原东声提立及比员解水名真论处走义各入几口认条平系气题活尔更别打女变四神总何电数安少报才结反"
    "受目太量再感建务做接必场件计管期市直德资命山金指克许统区保至队形社便空决治展马科司五基眼书非则听白却界达光放强即像难且"
    "权思王象完设式色路记南品住告类求据程北边死张该交规万取拉格望觉术领共确传师观清今切院让识候带导争运春花风雨云江夜歌诗酒"
    "這個們來為國說時會對過發後裡種經麼學現當沒動還進樣開實軍無與長機關點業將兩問應戰頭體見產話給門聲論處義認條東電書"
    "，。：；！？、“”《》"
)
"""Characters that any page of modern or classical Chinese is full of; text misread as GB18030 has few of them."""
_MIN_COMMON_SHARE = 0.18
_MIN_GB2312_SHARE = 0.6
_MAX_MIXED_SHARE = 0.1
_SHORT_TEXT = 12
"""Characters; below this the shares are too coarse, and one common character is asked for."""


def has_mark(head: bytes) -> int:
    """The length of the byte-order mark that ``head`` begins with, 0 without one."""
    return next((len(mark) for mark, _ in _MARKS if head.startswith(mark)), 0)


def sniff(sample: bytes, *, complete: bool) -> Encoding:
    """The encoding of a file whose first bytes are ``sample`` (``complete``: that is the whole file)."""
    for mark, encoding in _MARKS:
        if sample.startswith(mark):
            return encoding
    if not complete:
        sample = sample[: sample.rfind(b"\n") + 1] or sample[:-3]
    if _is_utf8(sample):
        return Encoding.UTF_8
    lines = [line for line in sample.split(b"\n") if not line.isascii()]
    foreign = [line for line in lines if not _is_utf8(line)]
    if len(lines) - len(foreign) > _MAX_MIXED_SHARE * len(lines):
        return Encoding.UTF_8
    return Encoding.GB18030 if _reads_as_chinese(foreign) else Encoding.UTF_8


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _reads_as_chinese(lines: Iterable[bytes]) -> bool:
    """Whether most lines decode as GB18030 and what they say looks like Chinese."""
    decoded: list[str] = []
    failed = 0
    for line in lines:
        try:
            decoded.append(line.decode("gb18030"))
        except UnicodeDecodeError:
            failed += 1
    if not decoded or failed > len(decoded) // 10 + 1:
        return False
    wide = [char for char in "".join(decoded)[: 1 << 20] if ord(char) > 0x7F]
    common = sum(char in _COMMON for char in wide)
    if len(wide) < _SHORT_TEXT:
        return common > 0
    pairs = np.frombuffer("".join(wide).encode("gb2312", "ignore"), dtype=np.uint8)[::2]
    usual = int(np.count_nonzero(((pairs >= 0xB0) & (pairs <= 0xD7)) | (pairs <= 0xA3)))
    return common >= _MIN_COMMON_SHARE * len(wide) and usual >= _MIN_GB2312_SHARE * len(wide)


def recode_line(line: bytes, encoding: Encoding) -> bytes:
    """One line of a GB18030 file as UTF-8; raises :class:`UnicodeDecodeError` where it is not."""
    return line.decode(encoding).encode("utf-8") if encoding is not Encoding.UTF_8 else line


def recode_blocks(blocks: Iterable[bytes], encoding: Encoding) -> Iterator[bytes]:
    """``blocks`` as UTF-8 without a byte-order mark, for the formats whose records are found after decoding.

    What cannot be decoded comes out as the bytes of lone surrogates, which no strict UTF-8 reader takes, so that the
    record that holds it is rejected and its neighbours are not.
    """
    if encoding is Encoding.UTF_8:
        first = True
        for block in blocks:
            yield block.removeprefix(codecs.BOM_UTF8) if first else block
            first = False
        return
    errors = "surrogateescape" if encoding is Encoding.GB18030 else "surrogatepass"
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    first = True
    for block in blocks:
        text = decoder.decode(block)
        if first and text:
            text = text.removeprefix("\ufeff")
            first = False
        yield text.encode("utf-8", "surrogatepass")
    rest = _flush(decoder)
    if rest:
        yield rest


def _flush(decoder: codecs.IncrementalDecoder) -> bytes:
    """What the decoder still holds; half a character at the end becomes a lone surrogate, to be rejected."""
    try:
        return decoder.decode(b"", True).encode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return b"\xed\xb3\xbf"
