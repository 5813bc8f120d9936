"""Tensors to files and back through torch.distributed.checkpoint, without pickle on disk.

torch's file-system writer puts all parts of one rank into one file of `torch.save` archives and pickles an index beside
them. Ours hashes each file while it is written, and its index is JSON (docs/decisions/0020).
"""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult

from lockstep.checkpoints.pieces import Piece, dtype_from_name, dtype_name
from lockstep.checkpoints.ranks import Ranks, describe, failure
from lockstep.foundation.files import read_json, write_json

INDEX_NAME = "tensors.json"
_BUFFER_BYTES = 1 << 20

# torch says this about every one-process save, even where `no_dist` asked for just that.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


def write_shards(folder: Path, pieces: Mapping[str, Piece], ranks: Ranks) -> dict[str, tuple[int, str]]:
    """Writes this rank's pieces, and on rank 0 the index; returns name → (bytes, sha256) of this rank's files.

    Collective. Files are flushed to disk. Raises RankError on all ranks if one could not write.
    """
    writer = _Writer(folder)
    try:
        save(
            dict(pieces),
            storage_writer=writer,
            planner=_PiecePlanner(),
            process_group=ranks.group,
            no_dist=ranks.group is None,
        )
    except CheckpointException as error:
        raise failure("writing shards", {r: describe(e) for r, (e, _) in error.failures.items()}) from None
    return writer.files.written


def read_shards(reader: ShardReader, tensors: dict[str, torch.Tensor], ranks: Ranks) -> None:
    """Fills `tensors` in place, each rank reading what its parts need. Collective; raises RankError on all ranks."""
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    try:
        load(
            tensors,
            storage_reader=reader,
            planner=planner,
            process_group=ranks.group,
            no_dist=ranks.group is None,
        )
    except CheckpointException as error:
        raise failure("reading shards", {r: describe(e) for r, (e, _) in error.failures.items()}) from None


class ShardReader(FileSystemReader):
    """The tensors of one checkpoint folder; its index is read once, however many tensors are."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._index: Metadata | None = None

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        """The JSON index in the form that torch's planners use."""
        if self._index is None:
            self._index = _index_to_metadata(read_json(Path(self.path) / INDEX_NAME)["tensors"])
            self._index.storage_meta = StorageMeta(load_id=self.load_id)
        return self._index


def _index_to_metadata(tensors: dict[str, Any]) -> Metadata:
    known: dict[str, Any] = {}
    places: dict[MetadataIndex, _StorageInfo] = {}
    for name, entry in tensors.items():
        properties = TensorProperties(dtype=dtype_from_name(entry["dtype"]))
        chunks = [ChunkStorageMetadata(torch.Size(c["offset"]), torch.Size(c["shape"])) for c in entry["chunks"]]
        known[name] = TensorStorageMetadata(properties, torch.Size(entry["shape"]), chunks)
        for c in entry["chunks"]:
            places[MetadataIndex(name, c["offset"])] = _StorageInfo(c["file"], c["start"], c["bytes"])
    return Metadata(known, storage_data=places)


class HashingStream(io.BufferedIOBase):
    """Passes writes on and hashes them on the way, so that no file is read again for its hash."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._digest = hashlib.sha256()
        self.error: OSError | None = None
        """What a write failed with; torch's archive writer reports only a wrong position in its place."""

    def write(self, data: Any) -> int:
        """Writes and hashes `data`."""
        self._digest.update(data)
        try:
            return self._raw.write(data)
        except OSError as error:
            self.error = error
            raise

    def tell(self) -> int:
        """Bytes written so far."""
        return self._raw.tell()

    def flush(self) -> None:
        """Hands buffered bytes to the system."""
        self._raw.flush()

    def finish(self) -> tuple[int, str]:
        """Makes the file durable; returns its bytes and sha256."""
        self._raw.flush()
        os.fsync(self._raw.fileno())
        return self._raw.tell(), self._digest.hexdigest()


class _HashingFiles(FileSystem):
    """torch's file system with hashes and fsync; `written` maps each file's name to (bytes, sha256)."""

    def __init__(self) -> None:
        self.written: dict[str, tuple[int, str]] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase, None, None]:
        assert mode == "wb", "this file system only writes"
        with open(path, "wb", buffering=_BUFFER_BYTES) as raw:
            stream = HashingStream(raw)
            try:
                yield stream
            except RuntimeError as error:
                raise stream.error or error from None
            self.written[Path(path).name] = stream.finish()


class _Writer(FileSystemWriter):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, sync_files=False)  # torch's fsync comes before the buffer is flushed; ours after
        self.files = _HashingFiles()
        self.fs = self.files

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Writes the index; rank 0 only."""
        sizes = _chunk_sizes(metadata)
        chunks: dict[str, list[dict[str, Any]]] = {name: [] for name in metadata.state_dict_metadata}
        for written in (result for per_rank in results for result in per_rank):
            chunks[written.index.fqn].append(_chunk_to_json(written, sizes))
        index = {name: _tensor_to_json(metadata, name, chunks[name]) for name in chunks}
        write_json(Path(self.path) / INDEX_NAME, {"tensors": index})


class _PiecePlanner(DefaultSavePlanner):
    """Plans over our pieces instead of live DTensors, which a background thread must not touch during training."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> SavePlan:
        """One item per piece, empty ones (uneven shards) left out; the coordinator thins out replicas."""
        pieces: dict[str, Piece] = self.state_dict
        items = [_write_item(name, piece) for name, piece in pieces.items() if _worth_writing(piece)]
        self.plan = SavePlan(items)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> torch.Tensor:
        """The values of the piece that `index` names."""
        piece: Piece = self.state_dict[index.fqn]
        return piece.local


def _worth_writing(piece: Piece) -> bool:
    return piece.local.numel() > 0 or piece.shape.numel() == 0


def _write_item(name: str, piece: Piece) -> WriteItem:
    chunk = ChunkStorageMetadata(piece.offsets, piece.local.size())
    data = TensorWriteData(chunk, TensorProperties(dtype=piece.local.dtype), piece.shape)
    return WriteItem(MetadataIndex(name, piece.offsets), WriteItemType.SHARD, tensor_data=data)


def _tensor_to_json(metadata: Metadata, name: str, chunks: list[dict[str, Any]]) -> dict[str, Any]:
    tensor = metadata.state_dict_metadata[name]
    assert isinstance(tensor, TensorStorageMetadata)
    return {"dtype": dtype_name(tensor.properties.dtype), "shape": list(tensor.size), "chunks": chunks}


def _chunk_sizes(metadata: Metadata) -> dict[MetadataIndex, list[int]]:
    tensors = metadata.state_dict_metadata.items()
    known = ((name, tensor.chunks) for name, tensor in tensors if isinstance(tensor, TensorStorageMetadata))
    return {MetadataIndex(name, chunk.offsets): list(chunk.sizes) for name, chunks in known for chunk in chunks}


def _chunk_to_json(written: WriteResult, sizes: Mapping[MetadataIndex, list[int]]) -> dict[str, Any]:
    assert written.index.offset is not None
    place: _StorageInfo = written.storage_data
    return {
        "offset": list(written.index.offset),
        "shape": sizes[written.index],
        "file": place.relative_path,
        "start": place.offset,
        "bytes": place.length,
    }
