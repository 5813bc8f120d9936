"""The token store: what goes in comes out by index, the same samples give the same bytes, and it is whole or absent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lockstep.data.encode import Sample
from lockstep.data.store import TokenStore
from lockstep.data.writer import TokenStoreWriter
from lockstep.foundation.errors import UsageError
from lockstep.foundation.files import sha256_tree


def rows(num_rows: int = 300) -> list[list[Sample]]:
    def sample(row: int, number: int) -> Sample:
        ids = np.arange(row + number, row + number + 3 + row % 5, dtype=np.int32)
        return Sample(ids, np.where(np.arange(len(ids)) < 2, np.int32(-100), ids))

    return [[sample(row, number) for number in range(1 + row % 3)] for row in range(num_rows)]


def write(path: Path, data: list[list[Sample]]) -> None:
    with TokenStoreWriter(path, max_length=64, chat_template="{{ 1 }}") as writer:
        for row in data:
            writer.add(row)


def test_rows_come_back_by_index(tmp_path: Path):
    data = rows()
    write(tmp_path / "store", data)
    store = TokenStore.open(tmp_path / "store")
    assert len(store) == 300
    for index in (299, 0, 150):
        row = store.row(index)
        assert row["input_ids"].tolist() == np.concatenate([sample.input_ids for sample in data[index]]).tolist()
        assert row["labels"].tolist() == np.concatenate([sample.labels for sample in data[index]]).tolist()
        assert row["seq_lengths"].tolist() == [len(sample) for sample in data[index]]
    assert store.num_tokens == sum(len(sample) for row in data for sample in row)
    assert store.num_supervised_tokens == sum(sample.num_supervised for row in data for sample in row)
    assert store.chat_template == "{{ 1 }}"


def test_the_data_is_mapped_from_the_file(tmp_path: Path):
    write(tmp_path / "store", rows())
    store = TokenStore.open(tmp_path / "store")
    assert [Path(entry["filename"]) for entry in store.dataset.cache_files] == [tmp_path / "store" / "rows.arrow"]
    assert store.dataset.column_names == ["input_ids", "labels", "seq_lengths"]


def test_the_same_samples_give_the_same_bytes_in_any_folder(tmp_path: Path):
    write(tmp_path / "a" / "store", rows())
    write(tmp_path / "somewhere else" / "b", rows())
    assert sha256_tree(tmp_path / "a" / "store") == sha256_tree(tmp_path / "somewhere else" / "b")


def test_an_error_leaves_neither_a_part_nor_harm_to_the_old_store(tmp_path: Path):
    write(tmp_path / "store", rows(10))
    before = sha256_tree(tmp_path / "store")
    with pytest.raises(TypeError):
        write(tmp_path / "store", [*rows(5), [None]])  # type: ignore[list-item]
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert sha256_tree(tmp_path / "store") == before


def test_a_store_that_is_absent_or_cut_short_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="lockstep run prepare"):
        TokenStore.open(tmp_path / "store")
    write(tmp_path / "store", rows())
    arrow = tmp_path / "store" / "rows.arrow"
    arrow.write_bytes(arrow.read_bytes()[:-100])
    with pytest.raises(UsageError, match="dvc checkout"):
        TokenStore.open(tmp_path / "store")


def test_an_empty_store_can_be_written_and_read(tmp_path: Path):
    write(tmp_path / "store", [])
    assert len(TokenStore.open(tmp_path / "store")) == 0
