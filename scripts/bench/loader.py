"""Run by the Python that has the loaders: write shards, or read one epoch of them and print what was seen as JSON.

loader.py write DIR MIB          DIR/{parquet,tar,mds}, about MIB each
loader.py parquet|tar|mds DIR    one epoch of DIR
"""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
import time
from pathlib import Path

ROW_BYTES = 8 << 10
SHARD_ROWS = 4096


def write(folder: Path, mib: int) -> None:
    """The same rows of random bytes in each format."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from streaming import MDSWriter

    rows = (mib << 20) // ROW_BYTES
    for kind in ("parquet", "tar"):
        (folder / kind).mkdir(parents=True)
    for shard in range(-(-rows // SHARD_ROWS)):
        contents = [os.urandom(ROW_BYTES) for _ in range(min(SHARD_ROWS, rows - shard * SHARD_ROWS))]
        table = pa.table({"id": list(range(len(contents))), "content": pa.array(contents, pa.large_binary())})
        pq.write_table(table, folder / "parquet" / f"train-{shard:05}.parquet", compression="none", row_group_size=512)
        with tarfile.open(folder / "tar" / f"train-{shard:05}.tar", "w") as archive:
            for number, content in enumerate(contents):
                member = tarfile.TarInfo(f"{number:07}.bin")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    with MDSWriter(out=str(folder / "mds"), columns={"id": "int", "content": "bytes"}, size_limit=32 << 20) as writer:
        for number in range(rows):
            writer.write({"id": number, "content": os.urandom(ROW_BYTES)})


def parquet(folder: Path) -> int:
    """Bytes seen by Hugging Face datasets, streaming."""
    from datasets import load_dataset

    files = sorted(map(str, folder.glob("*.parquet")))
    rows = load_dataset("parquet", data_files=files, split="train", streaming=True)
    return sum(len(batch["content"][0]) * len(batch["content"]) for batch in rows.iter(batch_size=256))


def tar(folder: Path) -> int:
    """Bytes seen by WebDataset."""
    import webdataset

    shards = sorted(map(str, folder.glob("*.tar")))
    return sum(len(sample["bin"]) for sample in webdataset.WebDataset(shards, shardshuffle=False, empty_check=False))


def mds(folder: Path) -> int:
    """Bytes seen by MosaicML streaming."""
    from streaming import StreamingDataset

    return sum(len(sample["content"]) for sample in StreamingDataset(local=str(folder), shuffle=False, batch_size=64))


def main() -> None:
    """See the module."""
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]), int(sys.argv[3]))
        return
    read = {"parquet": parquet, "tar": tar, "mds": mds}[sys.argv[1]]
    read(Path(sys.argv[2]))  # imports and first contact
    started = time.perf_counter()
    seen = read(Path(sys.argv[2]))
    print(json.dumps({"bytes": seen, "seconds": time.perf_counter() - started}))


if __name__ == "__main__":
    main()
