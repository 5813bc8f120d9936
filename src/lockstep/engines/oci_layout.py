"""A Docker image as an OCI layout, its layers as they are.

Apptainer compresses every layer of a docker-archive, twice, before it unpacks them; from a layout it unpacks at once.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import subprocess
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from lockstep.foundation.errors import LockstepError

_CHUNK_BYTES = 1 << 20
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_COMPRESSED = {b"\x1f\x8b": "+gzip", b"\x28\xb5": "+zstd"}
"""First two bytes of a blob → what its media type ends with (Docker's containerd store keeps layers compressed)."""


@dataclass
class Layout:
    """An OCI image layout (image-spec 1.0) in the making."""

    folder: Path
    digests: dict[str, str] = field(default_factory=dict)
    """Path in the saved archive → sha256 of what lies there, as hex digits."""

    def store(self, name: str, content: IO[bytes]) -> None:
        """Keeps one file of the archive under its digest."""
        digest, part = hashlib.sha256(), self.folder / "part"
        with part.open("wb") as file:
            while chunk := content.read(_CHUNK_BYTES):
                digest.update(chunk)
                file.write(chunk)
        self.digests[name] = digest.hexdigest()
        part.replace(self.blob(name))

    def blob(self, name: str) -> Path:
        """Where the content of one file of the archive lies."""
        return self.folder / "blobs" / "sha256" / self.digests[name]

    def descriptor(self, name: str, media_type: str) -> dict[str, Any]:
        """How a manifest points to it."""
        size = self.blob(name).stat().st_size
        return {"mediaType": media_type, "digest": f"sha256:{self.digests[name]}", "size": size}

    def layer(self, name: str) -> dict[str, Any]:
        """How a manifest points to a layer."""
        with self.blob(name).open("rb") as file:
            return self.descriptor(name, _LAYER + _COMPRESSED.get(file.read(2), ""))


def write_layout(image: str, folder: Path) -> None:
    """Writes an image of Docker to `folder`, which holds nothing yet. Raises LockstepError when it cannot be saved."""
    layout = Layout(folder)
    (folder / "blobs" / "sha256").mkdir(parents=True)
    with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saving:
        assert saving.stdout is not None
        try:
            _read(saving.stdout, layout)
        except tarfile.TarError as error:
            saving.kill()
            raise LockstepError(f"`docker save {image}` gave no whole archive: {error}") from None
    if saving.returncode != 0:
        raise LockstepError(f"`docker save {image}` ended with {saving.returncode}; what went wrong stands above")
    _describe(layout)


def _read(stream: IO[bytes], layout: Layout) -> None:
    links = {}
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            if member.issym():
                links[member.name] = posixpath.normpath(posixpath.join(posixpath.dirname(member.name), member.linkname))
            elif (content := archive.extractfile(member)) is not None:
                layout.store(member.name, content)
    layout.digests |= {name: layout.digests[target] for name, target in links.items()}


def _describe(layout: Layout) -> None:
    (saved,) = json.loads(layout.blob("manifest.json").read_text(encoding="utf-8"))
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": layout.descriptor(saved["Config"], _CONFIG),
        "layers": [layout.layer(name) for name in saved["Layers"]],
    }
    part = layout.folder / "manifest"
    part.write_text(json.dumps(manifest), encoding="utf-8")
    with part.open("rb") as file:
        layout.store("the manifest", file)
    part.unlink()
    index = {"schemaVersion": 2, "manifests": [layout.descriptor("the manifest", _MANIFEST)]}
    (layout.folder / "index.json").write_text(json.dumps(index), encoding="utf-8")
    (layout.folder / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}), encoding="utf-8")
