"""Which engine runs a stage: the command line, then LOCKSTEP_ENGINE, then this checkout's own choice, then `auto`."""

from __future__ import annotations

from pathlib import Path

from lockstep.engines.apptainer import ApptainerEngine
from lockstep.engines.base import Engine
from lockstep.engines.docker import DockerEngine
from lockstep.engines.environment import image_facts
from lockstep.engines.host import HostEngine
from lockstep.engines.variables import host_variables
from lockstep.foundation.errors import UsageError, nearest

AUTO = "auto"


def local_choice(project: Path) -> Path:
    """The git-ignored file whose one word names this checkout's engine."""
    return project / ".lockstep" / "engine"


def engines(project: Path) -> dict[str, Engine]:
    """All engines by name."""
    found: tuple[Engine, ...] = (HostEngine(), ApptainerEngine(project), DockerEngine(project))
    return {engine.name: engine for engine in found}


def select_engine(project: Path, wanted: str | None, flavour: str) -> Engine:
    """The engine for this start. Raises UsageError for an unknown name or an engine that cannot run here.

    `auto` is: inside an image already, then here; an image of the locked environment whose engine works, then that;
    else the host.
    """
    name = wanted or host_variables().get("LOCKSTEP_ENGINE") or _local(project) or AUTO
    known = engines(project)
    if image_facts() is not None:
        return known["host"]
    if name == AUTO:
        return _automatic(known, flavour)
    if name not in known:
        raise UsageError(f"there is no engine '{name}'; there are {', '.join([*known, AUTO])}.{nearest(name, known)}")
    reason = known[name].unavailable(flavour)
    if reason:
        raise UsageError(f"the engine '{name}' cannot run here: {reason}")
    return known[name]


def _automatic(known: dict[str, Engine], flavour: str) -> Engine:
    containers = (engine for name, engine in known.items() if name != "host")
    return next((engine for engine in containers if engine.unavailable(flavour) is None), known["host"])


def _local(project: Path) -> str | None:
    path = local_choice(project)
    return path.read_text(encoding="utf-8").strip() or None if path.exists() else None
