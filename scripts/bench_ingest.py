"""How fast one core cleans and de-identifies a Chinese JSONL corpus, stage by stage; print JSON.

The corpus is made here, the same every time: documents of about 1,200 characters, three in ten with digits (dates,
amounts, order numbers), two in a hundred with planted personal data, one in a hundred with full-width digits. Stages
are measured in CPU seconds of one process. The peers see the same decoded texts in the same run: the patterns of the
seven entities with Python's `re`, document by document; and jionlp's extractors on a sample, where it is installed.
Compare the ratios, absolute values depend on the machine.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sample_corpus import Corpus

from compliance.policy import Policy
from ingest.parts import PartTask, process_split
from ingest.plan import make_plan
from ingest.recipe import Recipe
from ingest.sources import find

PLAIN_PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?<!\d)[1-8]\d{5}(?:19|20)\d{2}[01]\d[0-3]\d\d{3}[\dXx](?!\d)",
        r"(?<!\d)(?:\+?86[ -]?)?1[3-9]\d[ -]?\d{4}[ -]?\d{4}(?!\d)",
        r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+",
        r"(?<!\d)[2-69]\d{12,18}(?!\d)",
        r"(?<![0-9A-Z])[1-9AYN][0-9]\d{6}[0-9A-HJ-NP-Y]{10}(?![0-9A-Z])",
        r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])",
        r"[京津沪渝冀豫云辽黑湘皖鲁新苏浙赣鄂桂甘晋蒙陕吉闽贵粤青藏川宁琼][A-Z][·. -]?[A-HJ-NP-Z0-9]{5,6}",
    )
)
"""What a script without an engine would use. It validates nothing, so it does less work than ingest does."""
JIONLP_EXTRACTORS = ("extract_phone_number", "extract_id_card", "extract_email", "extract_ip_address")
JIONLP_CHARACTERS = 300_000
FULL_WIDTH = str.maketrans("0123456789", "０１２３４５６７８９")


def documents(size_bytes: int) -> list[str]:
    """Texts of about ``size_bytes`` of UTF-8 in all."""
    rng = random.Random(20260531)
    corpus = Corpus(20260531)
    plain = [re.sub("[0-9]+年，编号[0-9]+", "去年", corpus.sentence()) for _ in range(2000)]
    planted = [corpus.personal(1.0) for _ in range(1000)]
    made: list[str] = []
    size = 0
    while size < size_bytes:
        sentences = rng.choices(plain, k=rng.randint(10, 55))
        if rng.random() < 0.3:
            for _ in range(rng.randint(1, 6)):
                number = f"{rng.randint(1990, 2026)}年共{rng.randrange(10**6):,}元，单号{rng.randrange(10**12)}。"
                sentences.insert(rng.randrange(len(sentences)), number)
        if rng.random() < 0.02:
            sentences.insert(rng.randrange(len(sentences)), rng.choice(planted))
        if rng.random() < 0.01:
            sentences.append(f"第{rng.randrange(1000)}号".translate(FULL_WIDTH))
        made.append("\n".join(sentences))
        size += len(made[-1].encode())
    return made


def cpu(function: Callable[[], Any]) -> float:
    """CPU seconds of one call."""
    begun = time.process_time()
    function()
    return time.process_time() - begun


def ingest_once(path: Path, folder: Path) -> dict[str, float]:
    """CPU seconds by stage of making every part of the file at ``path``."""
    plan = make_plan(find([path]), Recipe(), 1)
    seconds: dict[str, float] = {}
    for number, bundle in enumerate(plan.bundles()):
        members = tuple((plan.files[split.file], split) for split in bundle)
        task = PartTask(f"part{number}", folder, members, plan.schema, Policy.load("standard").to_document())
        begun = time.process_time()
        part = process_split(task)
        total = time.process_time() - begun
        for stage, value in (*part.seconds.items(), ("total", total)):
            seconds[stage] = seconds.get(stage, 0.0) + value
    shutil.rmtree(folder)
    return seconds


def plain_re(texts: Sequence[str]) -> int:
    """Replace every match of the plain patterns; the number of replacements."""
    count = 0
    for text in texts:
        for pattern in PLAIN_PATTERNS:
            text, found = pattern.subn("<>", text)
            count += found
    return count


def jionlp_mb_per_s(texts: Sequence[str]) -> float | None:
    """MB of text per CPU second of jionlp's extractors on a sample, None when it is not installed."""
    try:
        jionlp = importlib.import_module("jionlp")
    except ImportError:
        return None
    sample: list[str] = []
    while sum(map(len, sample)) < JIONLP_CHARACTERS and len(sample) < len(texts):
        sample.append(texts[len(sample)])
    extractors = [getattr(jionlp, name) for name in JIONLP_EXTRACTORS]
    for extract in extractors:
        extract(sample[0])  # loads its tables
    seconds = cpu(lambda: [extract(text) for text in sample for extract in extractors])
    return sum(len(text.encode()) for text in sample) / seconds / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=100, help="size of the corpus (default 100)")
    parser.add_argument("--repeat", type=int, default=3, help="repetitions, of which medians are told (default 3)")
    options = parser.parse_args()
    texts = documents(options.mb * 1_000_000)
    text_bytes = sum(len(text.encode()) for text in texts)
    with tempfile.TemporaryDirectory(prefix="openshelf-bench-") as name:
        path = Path(name) / "corpus.jsonl"
        with path.open("w", encoding="utf-8") as sink:
            for number, text in enumerate(texts):
                sink.write(json.dumps({"id": number, "text": text, "source": "bench"}, ensure_ascii=False) + "\n")
        size = path.stat().st_size
        runs = [ingest_once(path, Path(name) / "parts") for _ in range(options.repeat)]
    stages = {stage: median(run[stage] for run in runs) for stage in runs[0]}
    peer = median(cpu(lambda: plain_re(texts)) for _ in range(options.repeat))
    found = stages["de-identify"]
    print(
        json.dumps(
            {
                "corpus": {"documents": len(texts), "file_bytes": size, "text_bytes": text_bytes},
                "mb_per_cpu_second": {stage: round(size / value / 1e6, 1) for stage, value in stages.items() if value},
                "peers_mb_per_cpu_second": {
                    "plain_re": round(text_bytes / peer / 1e6, 1),
                    "jionlp": (speed := jionlp_mb_per_s(texts)) and round(speed, 2),
                },
                "ratios": {
                    "de-identify/plain_re": round(peer / found, 2),
                    "whole ingest/plain_re": round(peer / stages["total"], 2),
                },
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
