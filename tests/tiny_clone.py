"""A clone of this checkout with the tiny recipe, fetched and prepared: where stages run for real in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from e2e.clones import Clone


def prepared_clone(folder: Path, **sections: dict[str, Any]) -> Clone:
    """A clone with the tiny recipe, the given keys of its sections replaced, its data fetched and prepared."""
    clone = Clone.make(folder, share_environment=True)
    clone.run("./lockstep", "use", "tiny-cpu")
    set_parameters(clone, **sections)
    clone.run("./lockstep", "fetch")
    clone.run("./lockstep", "run", "prepare")
    return clone


def set_parameters(clone: Clone, **sections: dict[str, Any]) -> None:
    """Replaces keys of sections in the clone's params.yaml."""
    path = clone.path / "params.yaml"
    parameters = yaml.safe_load(path.read_text())
    for name, values in sections.items():
        parameters[name] = {**parameters[name], **values}
    path.write_text(yaml.safe_dump(parameters))
