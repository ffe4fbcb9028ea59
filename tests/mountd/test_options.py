"""The options of a mount, from flags, environment and settings file."""

from __future__ import annotations

import dataclasses
import json

import pytest

from mountd.options import Options, load
from openshelf.errors import UsageError


def test_flags_go_before_the_environment_and_that_before_the_file(tmp_path):
    file = tmp_path / "openshelf.toml"
    file.write_text('[mount]\nfill = "lazy"\nproxies = "http://c:3128"\nmemory_bytes = "512M"\ncache_files = 1000\n')
    environ = {"OPENSHELF_CONFIG": str(file), "OPENSHELF_PROXIES": "http://b:3128", "OPENSHELF_MORE_CACHES": "/a:/b"}
    options = load({"proxies": "http://a:3128", "fill": None}, environ)
    assert (options.proxies, options.fill, options.memory_bytes) == ("http://a:3128", "lazy", 512 << 20)
    assert (options.more_caches, options.cache_files) == (("/a", "/b"), 1000)
    assert load({}, environ).proxies == "http://b:3128"
    assert load({}, {"OPENSHELF_CONFIG": str(tmp_path / "none")}) == Options()


@pytest.mark.parametrize(
    ("written", "named"),
    [("fill = 1", "fill"), ('cache_files = "-1"', "cache_files"), ("colour = 1", "mount.colour"), ("fill", "TOML")],
)
def test_a_wrong_option_is_named(tmp_path, written, named):
    file = tmp_path / "openshelf.toml"
    file.write_text(f"[mount]\n{written}\n")
    with pytest.raises(UsageError) as caught:
        load({}, {"OPENSHELF_CONFIG": str(file)})
    assert named in caught.value.message


def test_options_travel_as_json():
    options = Options(more_caches=("/a",), fill="lazy", free_bytes=5)
    assert Options.from_json(json.loads(json.dumps(dataclasses.asdict(options)))) == options


def test_options_of_another_version_are_understood():
    assert Options.from_json({"fill": "lazy", "of_the_future": 3}) == Options(fill="lazy")
