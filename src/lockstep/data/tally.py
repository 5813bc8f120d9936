"""What was read, kept and dropped, and why: counted per source and per label, with the first few places named."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

_NUM_PLACES_NAMED = 5


@dataclass
class Tally:
    """Counts of one data section."""

    read: Counter[str] = field(default_factory=Counter)
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(source, reason)"""
    kept: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """(source, label, split)"""
    changed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(source, how): kept, but not as it was read."""
    places: dict[str, list[str]] = field(default_factory=dict)

    def drop(self, source: str, reason: str, where: str) -> None:
        """Counts a text that is not used, and remembers where the first few of its kind are."""
        self.dropped[source, reason] += 1
        named = self.places.setdefault(reason, [])
        if len(named) < _NUM_PLACES_NAMED:
            named.append(where)

    def keep(self, source: str, label: str, split: str) -> None:
        """Counts a text that is used."""
        self.kept[source, label, split] += 1

    def num_kept(self, split: str) -> int:
        """Texts kept in a split, over all sources and labels."""
        return sum(count for (_, _, in_split), count in self.kept.items() if in_split == split)

    def num_dropped(self, reason: str) -> int:
        """Texts dropped for a reason, over all sources."""
        return sum(count for (_, why), count in self.dropped.items() if why == reason)

    def as_metrics(self) -> dict[str, Any]:
        """Nested counts: by source, then `read`, `dropped.<reason>`, `kept.<split>.<label>`, `changed.<how>`."""
        return {source: self._of(source) for source in sorted(self.read)}

    def _of(self, source: str) -> dict[str, Any]:
        kept: dict[str, dict[str, int]] = {"train": {}, "eval": {}}
        for (of, label, split), count in sorted(self.kept.items()):
            if of == source:
                kept[split][label] = count
        return {
            "read": self.read[source],
            "kept": kept,
            "dropped": {reason: count for (of, reason), count in sorted(self.dropped.items()) if of == source},
            "changed": {how: count for (of, how), count in sorted(self.changed.items()) if of == source},
        }
