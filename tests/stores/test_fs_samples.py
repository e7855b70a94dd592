"""The directories of an earlier worker are taken over in place."""

from __future__ import annotations

from pathlib import Path

from tests.stores.samples import answers, copy_to, expected


async def test_a_directory_opened_in_place_answers_as_its_writer_did(tmp_path: Path) -> None:
    copy_to(tmp_path / "data")
    assert await answers({"name": "fs", "config": {"data_dir": "data"}}, tmp_path) == expected()


async def test_opening_a_directory_changes_none_of_its_files(tmp_path: Path) -> None:
    directory = copy_to(tmp_path / "data")
    before = {path.name: path.read_bytes() for path in directory.glob("*.jsonl")}
    await answers({"name": "fs", "config": {"data_dir": "data"}}, tmp_path)
    assert {path.name: path.read_bytes() for path in directory.glob("*.jsonl")} == before
