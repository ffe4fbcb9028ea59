from __future__ import annotations

import pytest

from catalog.names import InvalidPath, check_path, check_paths, is_digest, parse_collection, parse_release
from openshelf.errors import UsageError


def test_a_release_is_named_by_kind_namespace_name_and_version() -> None:
    ref = parse_release("datasets/belle/chat@1.0")
    assert (ref.collection.folder, ref.collection.namespace, ref.collection.name) == ("datasets", "belle", "chat")
    assert ref.version == "1.0"
    assert ref.collection.kind == "dataset"
    assert str(ref) == "datasets/belle/chat@1.0"


@pytest.mark.parametrize(
    "text",
    ["belle/chat", "dataset/belle/chat", "datasets/belle", "datasets/.hidden/chat", "datasets/百/chat",
     "datasets/a/b/c", "datasets/a/" + "x" * 65, "datasets/a/..", "datasets//chat", ""],
)  # fmt: skip
def test_what_is_not_a_collection_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a collection"):
        parse_collection(text)


@pytest.mark.parametrize("text", ["datasets/a/b", "datasets/a/b@", "datasets/a/b@../1", "datasets/a/b@1/2"])
def test_what_is_not_a_release_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a release"):
        parse_release(text)


@pytest.mark.parametrize(
    "path",
    ["README.md", "data/train-00000-of-00001.parquet", "数据/百科 00000.jsonl", ".gitattributes", "a" * 180,
     "/".join(["d" * 99] * 9), "汉" * 60, "emoji😀.txt"],
)  # fmt: skip
def test_good_paths_pass(path: str) -> None:
    check_path(path)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "is empty"),
        ("/etc/passwd", "is absolute"),
        ("../x", "component '..'"),
        ("a/../x", "component '..'"),
        ("a/./x", r"component '\.'"),
        ("a//b", "empty component"),
        ("a/", "empty component"),
        ("a\\b", "backslash"),
        ("a\nb", "control"),
        ("a\u202eb", "control or bidirectional"),
        ("a\u2028b", "control"),
        ("e\u0301.txt", "NFC"),
        ("\uf900.txt", "NFC"),
        (" a", "begins or ends with a space"),
        ("a.", "ends with a dot"),
        ("a./b", "ends with a dot"),
        ("a" * 181, "over 180 bytes"),
        ("汉" * 61, "over 180 bytes"),
        ("/".join(["d" * 100] * 9), "longer than 900 bytes"),
        ("release.json", "reserved"),
        ("\udcb2", "not valid UTF-8"),
    ],
)
def test_bad_paths_are_refused_with_the_reason(path: str, reason: str) -> None:
    with pytest.raises(InvalidPath, match=reason):
        check_path(path)


def test_release_json_is_reserved_only_at_the_top() -> None:
    check_path("sub/release.json")


@pytest.mark.parametrize("paths", [["a", "A"], ["a/x", "A/y"], ["a", "a/b"], ["a/b", "A"], ["ß", "SS"]])
def test_colliding_paths_are_refused_in_either_order(paths: list[str]) -> None:
    for order in (paths, paths[::-1]):
        with pytest.raises(InvalidPath, match="collides"):
            check_paths(order)


def test_a_message_never_carries_control_characters() -> None:
    with pytest.raises(InvalidPath) as caught:
        check_path("evil\x1b[31m\n.txt")
    assert "\x1b" not in caught.value.line()
    assert "\n" not in caught.value.line()


def test_digests_are_sixty_four_lower_case_hexadecimal_digits() -> None:
    assert is_digest("0" * 64)
    assert not is_digest("A" * 64)
    assert not is_digest("0" * 63)
    assert not is_digest("0" * 64 + "\n")
