"""Run by tests as a process of its own: builds token stores from N made-up lines and prints its peak memory.

`python made_up_lines.py FOLDER NUM_LINES [NUM_WORDS]`; one line in four is a chat. Prints a JSON object.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from random import Random

from data_worlds import sft_params, tiny_tokenizer
from lockstep.data.build import build_token_stores
from lockstep.data.reading import Section
from lockstep.data.store import TokenStore
from lockstep.data.tally import Tally

WORDS = ("today", "the", "little", "film", "by", "river", "was", "great", "soup", "near", "my", "house", "old", "song")


def write_lines(path: Path, num_lines: int, num_words: int) -> None:
    """Lines of `num_words` words, all different."""
    random = Random(num_lines)
    with path.open("w", encoding="utf-8") as file:
        for number in range(num_lines):
            text = f"{number} " + " ".join(random.choices(WORDS, k=num_words))
            chat = [{"role": "user", "content": text[:60]}, {"role": "assistant", "content": text[60:]}]
            file.write(json.dumps({"messages": chat} if number % 4 == 0 else {"text": text}) + "\n")


def main(folder: Path, num_lines: int, num_words: int) -> None:
    """Writes the lines, builds, and compares with what was made."""
    write_lines(folder / "chats.jsonl", num_lines, num_words)
    tokenizer = tiny_tokenizer()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    section = Section("sft", sft_params(max_length=1024, eval_fraction=0.01), folder, Tally())
    start = time.monotonic()
    build_token_stores(section, tokenizer, folder / "out", folder / "scratch")
    stores = [TokenStore.open(folder / "out" / split) for split in ("train", "eval")]
    facts = {
        "seconds": round(time.monotonic() - start, 1),
        "cpu_s": round(time.process_time(), 1),
        "before_mb": before / 1024,
        "grown_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        "num_samples": sum(store.manifest["num_samples"] for store in stores),
        "last_row": len(stores[0].row(len(stores[0]) - 1)["input_ids"]),
        "store_mb": sum(store.manifest["bytes"] for store in stores) / 2**20,
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 200)
