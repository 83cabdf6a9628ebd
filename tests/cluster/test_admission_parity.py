"""The same files, before two judges: what the library takes, kubectl and the API server take, and what it
refuses for the schema's sake, they refuse too."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from fencepost.api.manifest import JobManifest, load_manifests
from fencepost.api.read import job_from_object, task_from_object
from tests.api.manifests import LAWFUL, UNLAWFUL
from tests.cluster.admission_world import World, world
from tests.cluster.kubectl import run_kubectl

__all__ = ["world"]


def kubectl_create(world: World, text: str) -> subprocess.CompletedProcess[str]:
    """What kubectl makes of the file, as a person with the role edit; nothing is stored."""
    return run_kubectl(
        world.cluster.kubectl_program,
        Path(world.kubeconfigs["person"]),
        "create",
        "--dry-run=server",
        "--output=json",
        "--filename=-",
        input=text,
        check=False,
    )


@pytest.mark.parametrize("text", LAWFUL.values(), ids=LAWFUL)
def test_what_the_library_takes_the_server_takes_and_understands_alike(world: World, text: str) -> None:
    answer = kubectl_create(world, text)
    assert answer.returncode == 0, answer.stderr
    whole = json.loads(answer.stdout)
    whole["metadata"].setdefault("resourceVersion", "0")  # a dry run gives none
    (manifest,) = load_manifests(text, source="x")
    if isinstance(manifest, JobManifest):
        assert job_from_object(whole).spec == manifest.spec
    else:
        assert task_from_object(whole).spec == manifest.spec


@pytest.mark.parametrize("text", [text for text, _ in UNLAWFUL.values()], ids=UNLAWFUL)
def test_what_the_library_refuses_the_server_refuses(world: World, text: str) -> None:
    answer = kubectl_create(world, text)
    assert answer.returncode != 0, answer.stdout
