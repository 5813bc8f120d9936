"""Writes the token store: streamed, whole or not at all, and with bytes that depend on nothing but the samples."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from lockstep.data.encode import Sample
from lockstep.data.store import ARROW_FILE, IGNORED, MANIFEST_FILE, TEMPLATE_FILE
from lockstep.foundation.files import fsync_directory, sha256_file, write_atomic, write_json

_BATCH_TOKENS = 1 << 19
_COLUMNS = ("input_ids", "labels", "seq_lengths")
_SCHEMA = pa.schema([pa.field(name, pa.list_(pa.int32())) for name in _COLUMNS])


class TokenStoreWriter:
    """A context in which rows are added to a store that appears at `path` when the context ends without an error.

    Rows go to disk in batches of about half a million tokens. Nothing in the files tells when, where or by whom they
    were made. Leaving with an error removes what was written.
    """

    def __init__(self, path: Path, max_length: int, chat_template: str | None = None) -> None:
        self.path = path
        self._staging = path.with_name(f".{path.name}.tmp")
        self._facts = {"num_rows": 0, "num_samples": 0, "num_tokens": 0, "num_supervised_tokens": 0}
        self._max_length = max_length
        self._chat_template = chat_template
        self._rows: list[list[Sample]] = []
        self._num_waiting = 0

    def __enter__(self) -> Self:
        shutil.rmtree(self._staging, ignore_errors=True)
        self._staging.mkdir(parents=True)
        self._file = (self._staging / ARROW_FILE).open("wb")
        self._arrow = pa.ipc.new_stream(self._file, _SCHEMA)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._file.close()
            shutil.rmtree(self._staging, ignore_errors=True)

    @property
    def num_rows(self) -> int:
        """Rows added so far."""
        return self._facts["num_rows"]

    def add(self, row: list[Sample]) -> None:
        """Adds one row of one or more samples. Raises OSError when the disk is full."""
        num_tokens = sum(len(sample) for sample in row)
        self._rows.append(row)
        self._num_waiting += num_tokens
        self._facts["num_rows"] += 1
        self._facts["num_samples"] += len(row)
        self._facts["num_tokens"] += num_tokens
        self._facts["num_supervised_tokens"] += sum(sample.num_supervised for sample in row)
        if self._num_waiting >= _BATCH_TOKENS:
            self._write_batch()

    def _write_batch(self) -> None:
        columns = [
            _lists([[sample.input_ids for sample in row] for row in self._rows]),
            _lists([[sample.labels for sample in row] for row in self._rows]),
            _lists([[np.array([len(sample) for sample in row], dtype=np.int32)] for row in self._rows]),
        ]
        self._arrow.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))
        self._rows, self._num_waiting = [], 0

    def _finish(self) -> None:
        if self._rows:
            self._write_batch()
        self._arrow.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        if self._chat_template is not None:
            write_atomic(self._staging / TEMPLATE_FILE, self._chat_template)
        write_json(self._staging / MANIFEST_FILE, self._manifest())
        shutil.rmtree(self.path, ignore_errors=True)
        self._staging.rename(self.path)
        fsync_directory(self.path.parent)

    def _manifest(self) -> dict[str, Any]:
        arrow = self._staging / ARROW_FILE
        return {
            **self._facts,
            "max_length": self._max_length,
            "ignored_label": IGNORED,
            "bytes": arrow.stat().st_size,
            "sha256": sha256_file(arrow),
        }


def _lists(rows: list[list[np.ndarray[Any, Any]]]) -> pa.ListArray:
    """One Arrow list per row, made of the row's arrays end to end."""
    lengths = [sum(len(part) for part in row) for row in rows]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = np.concatenate([part for row in rows for part in row]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
