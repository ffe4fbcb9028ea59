from __future__ import annotations

from pathlib import Path

import pytest

from openshelf.errors import OpenshelfError, UsageError
from openshelf.settings import DEFAULT_CATALOG, load
from openshelf.units import format_size, parse_size


def test_flags_come_before_environment_before_file_before_defaults(tmp_path: Path) -> None:
    file = tmp_path / "openshelf.toml"
    assert load(environ={}, file=file).catalog == DEFAULT_CATALOG
    file.write_text('catalog = "http://file:1/"\ntoken = "f"\ndata = "/file"\n')
    assert load(environ={}, file=file).catalog == "http://file:1"
    env = {"OPENSHELF_CATALOG": "http://env:2", "OPENSHELF_DATA": "/env"}
    found = load(environ=env, file=file)
    assert (found.catalog, found.token, found.data) == ("http://env:2", "f", Path("/env"))
    assert load(catalog="http://flag:3", environ=env, file=file).catalog == "http://flag:3"


def test_the_run_folder_follows_the_desktop_standard(tmp_path: Path) -> None:
    found = load(environ={"XDG_DATA_HOME": "/x"}, file=tmp_path / "none.toml")
    assert found.data == Path("/x/openshelf")


def test_a_missing_token_says_how_to_set_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No token") as caught:
        load(environ={}, file=tmp_path / "none.toml").require_token()
    assert "OPENSHELF_TOKEN" in caught.value.hint
    assert "administrator" in caught.value.hint
    assert "token create" not in caught.value.hint, "making one needs a token"


@pytest.mark.parametrize("text", ["catalog = ", 'tokens = "x"'])
def test_a_wrong_file_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "openshelf.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"openshelf\.toml"):
        load(environ={}, file=file)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("1K", 1024),
        ("1kB", 1000),
        ("500G", 500 << 30),
        ("1.5TiB", 3 << 39),
        (" 2 MiB ", 2 << 20),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "1X", "1G5"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


def test_sizes_are_shown_with_three_digits() -> None:
    assert [format_size(size) for size in (0, 1023, 1536, 5 << 30)] == ["0 B", "1023 B", "1.5 KiB", "5 GiB"]


def test_an_error_is_one_line_that_says_what_to_do() -> None:
    assert OpenshelfError("x", "It broke", "Mend it.").line() == "It broke. Mend it."
    assert OpenshelfError("x", "It broke.").line() == "It broke."
