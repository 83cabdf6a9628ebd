"""Hash the standard library, one package a task, and write one manifest of all of it.

Embedded:    fencepost run examples/checksums/job.yaml --app examples.checksums.worker:worker
On a cluster: kubectl apply -f examples/checksums/job.yaml
             fencepost worker examples.checksums.worker:worker --once
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from pathlib import Path

from pydantic import BaseModel

from fencepost import Lease, Rejected, Worker
from fencepost.protocol.manifest import manifest_text

STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"])

worker = Worker(queues=["checksums", "checksums-manifest"])


class Package(BaseModel):
    package: str


class Manifest(BaseModel):
    file: str


@worker.task(queue="checksums")
def hash_package(request: Package) -> dict[str, str]:
    """The SHA-256 of every .py file of one package, by its path below the standard library."""
    folder = STANDARD_LIBRARY / request.package
    if not folder.is_dir():
        raise Rejected(f"{request.package} is no package of this Python")
    files = sorted(folder.rglob("*.py"))
    return {str(file.relative_to(STANDARD_LIBRARY)): sha256_of(file) for file in files}


@worker.task(queue="checksums-manifest")
def write_manifest(request: Manifest, lease: Lease) -> dict[str, str | int]:
    """Join the branches into one manifest.

    `lease.branches()` has compared the snapshot's digest, and every value with its hash. What is written
    depends on the snapshot alone, so a repeat after a crash writes the same file again.
    """
    digests: dict[str, str] = {}
    for branch in lease.branches().values():
        for path, digest in branch.data.items():
            digests[str(STANDARD_LIBRARY / path)] = digest
    target = Path(os.environ.get("CHECKSUMS_FOLDER", "build")) / Path(request.file).name
    target.parent.mkdir(parents=True, exist_ok=True)
    text = manifest_text(digests)
    target.with_suffix(".part").write_text(text)
    target.with_suffix(".part").replace(target)
    return {"file": str(target), "files": len(digests), "sha256": hashlib.sha256(text.encode()).hexdigest()}


def sha256_of(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
