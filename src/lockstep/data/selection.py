"""Which documents are used, and on which side of the split: duplicates out, weights, caps and balance applied.

All choices follow from content hashes, so they do not change with file order, and adding data moves no old document
from one split to the other. Documents wait on disk in buckets by hash, hence memory holds one bucket, however many
documents come in; read back bucket by bucket they are in the order of their hashes, which is also an unbiased shuffle.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from lockstep.data.documents import Document, fraction
from lockstep.data.tally import Tally
from lockstep.params.data import SectionParams, SourceParams

_BUCKET_BYTES = 4 << 20
_MAX_BUCKETS = 256


class HashBuckets:
    """Documents on disk, read back in the order of their content hash (equal ones in the order they came in)."""

    def __init__(self, folder: Path, expected_bytes: int) -> None:
        """Makes `folder` and chooses the number of buckets so that one holds about 4 MiB, 256 buckets at most."""
        folder.mkdir(parents=True)
        self._num = max(1, min(_MAX_BUCKETS, expected_bytes // _BUCKET_BYTES))
        self._paths = [folder / f"bucket-{number:03d}.jsonl" for number in range(self._num)]

    def fill(self, documents: Iterable[Document]) -> None:
        """Takes all documents; call it once."""
        files: list[TextIO] = []
        try:
            files.extend(path.open("w", encoding="utf-8", errors="surrogatepass") for path in self._paths)
            for document in documents:
                bucket = int(document.key[:2], 16) * self._num >> 8
                files[bucket].write(document.as_line())
        finally:
            for file in files:
                file.close()

    def __iter__(self) -> Iterator[Document]:
        for path in self._paths:
            with path.open(encoding="utf-8", errors="surrogatepass") as lines:
                bucket = [Document.from_line(line) for line in lines]
            yield from sorted(bucket, key=lambda document: document.key)


class Selection:
    """The documents of one section that are used, with their split."""

    def __init__(self, buckets: HashBuckets, params: SectionParams, tally: Tally, balance_labels: bool = False) -> None:
        self._buckets = buckets
        self._params = params
        self._tally = tally
        self._sources = {source.source: source for source in params.sources}
        self._label_quota = self._equal_shares() if balance_labels else None

    def documents(self) -> Iterator[tuple[str, Document]]:
        """(split, document) in the order of content hashes; whatever is not used is counted. Call it once.

        A source of weight w gives each training document floor(w) times and, by content hash, once more; repetitions
        come in further rounds over all documents, so that copies do not stand side by side.
        """
        yield from self._balanced(self._tally)
        most = max((source.weight for source in self._params.sources), default=1.0)
        for already in range(1, math.ceil(most)):
            for split, document in self._balanced(Tally()):
                if split == "train" and self._repeats(document) > already:
                    yield split, document

    def _equal_shares(self) -> dict[str, int]:
        """By split: how many documents of the rarest label there are."""
        available = Counter((split, document.label) for split, document in self._candidates(Tally()))
        return {of: min(count for (split, _), count in available.items() if split == of) for of, _ in available}

    def _balanced(self, tally: Tally) -> Iterator[tuple[str, Document]]:
        used: Counter[tuple[str, str]] = Counter()
        for split, document in self._candidates(tally):
            used[split, document.label] += 1
            if self._label_quota is not None and used[split, document.label] > self._label_quota[split]:
                tally.drop(document.source, "label_balance", document.where)
            else:
                yield split, document

    def _candidates(self, tally: Tally) -> Iterator[tuple[str, Document]]:
        """Unique documents within weights and caps, with their split; the others go to `tally`."""
        used: Counter[str] = Counter()
        previous = ""
        for document in self._buckets:
            if document.key == previous:
                tally.drop(document.source, "duplicate", document.where)
                continue
            previous = document.key
            split = "eval" if fraction(document.group, "split") < self._params.eval_fraction else "train"
            reason = self._beyond(split, document, used)
            if reason:
                tally.drop(document.source, reason, document.where)
            else:
                yield split, document

    def _beyond(self, split: str, document: Document, used: Counter[str]) -> str | None:
        """Counts the document in; or says which limit it is beyond."""
        if split == "train" and not self._repeats(document):
            return "below_weight"
        bound = self._params.max_eval_samples if split == "eval" else self._source(document).max_samples
        counted_as = split if split == "eval" else document.source
        if bound is not None and used[counted_as] >= bound:
            return f"beyond_{split}_cap"
        used[counted_as] += 1
        return None

    def _repeats(self, document: Document) -> int:
        weight = self._source(document).weight
        return int(weight) + (fraction(document.key, "weight") < weight % 1)

    def _source(self, document: Document) -> SourceParams:
        return self._sources[document.source]
