"""How the nodes of an attempt find each other: by files in the run directory, which all of them see.

Each node announces itself; the first one offers the address where it listens. Who does not come in time is named.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lockstep.foundation.errors import LockstepError
from lockstep.foundation.files import sha256_bytes, write_atomic

_FIRST_PORT, _NUM_PORTS = 20000, 10000
"""Below the ephemeral ports of Linux, which anybody's connection may take."""
_POLL_S = 0.2


class MissingNodesError(LockstepError):
    """Some nodes did not come, or will not; `nodes` names them."""

    def __init__(self, nodes: list[str], waited_s: float) -> None:
        super().__init__(f"waited {waited_s:.0f} s in vain for {', '.join(nodes)} to start its part")
        self.nodes = nodes


@dataclass(frozen=True)
class Meeting:
    """One gathering of all nodes; `folder` is its own. `addresses` maps node names to addresses, first node first."""

    folder: Path
    node: str
    addresses: dict[str, str]

    @property
    def is_first(self) -> bool:
        """True on the node that the others connect to."""
        return self.node == next(iter(self.addresses))

    def gather(self, key: str, timeout_s: float, given_up: Callable[[], set[str]] = set) -> str:
        """Announces this node, waits for all, and returns the `host:port` that the first node offers.

        `key` spreads ports of different runs; `given_up` says which nodes will not come, so that nobody waits for
        them. Raises MissingNodesError.
        """
        offer = self._offer(key) if self.is_first else ""
        write_atomic(self.folder / self.node, offer)
        started = time.monotonic()
        while missing := [node for node in self.addresses if node not in self._present()]:
            waited_s = time.monotonic() - started
            if waited_s > timeout_s or given_up() & set(missing):
                raise MissingNodesError(missing, waited_s)
            time.sleep(_POLL_S)
        return (self.folder / next(iter(self.addresses))).read_text(encoding="utf-8")

    def _present(self) -> set[str]:
        """By listing: a network file system remembers for long that a single name was not there."""
        return {path.name for path in self.folder.iterdir()}

    def _offer(self, key: str) -> str:
        return f"{self.addresses[self.node]}:{free_port(key)}"


def read_nodes(file: Path) -> dict[str, str]:
    """Node names and addresses as the batch script wrote them (`scontrol show node`), in Slurm's order."""
    rows = [line.split() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    return {row[0]: row[1] for row in rows}


def free_port(key: str) -> int:
    """A port of this node that nobody holds now; where the search begins depends on `key`, so two jobs rarely meet.

    Raises LockstepError when none is free.
    """
    start = int(sha256_bytes(key.encode())[:8], 16)
    for offset in range(_NUM_PORTS):
        port = _FIRST_PORT + (start + offset) % _NUM_PORTS
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise LockstepError(
        f"no port from {_FIRST_PORT} to {_FIRST_PORT + _NUM_PORTS - 1} is free on {socket.gethostname()}"
    )
