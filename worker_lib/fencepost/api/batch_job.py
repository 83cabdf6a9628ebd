"""What a batch/v1 Job has to look like at the least, so that a volume can be mounted in its containers.

Only its shape is looked at, down to where the snapshot goes. All else about a Job is the API server's to say,
when the Job is created.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fencepost.api.fields import Wrong, entries_of, object_of

GROUPS_OF_CONTAINERS: Final = ("initContainers", "containers")


def problems_of_batch_job(spec: Mapping[str, Any], at: str) -> Iterator[str]:
    """`path: sentence` for the first thing that is wrong with the spec of a Job; `at` is its path."""
    try:
        pods = object_of(spec, "template", f"{at}.template")
        pod = object_of(pods, "spec", f"{at}.template.spec")
        _refuse_odd_pod(pod, f"{at}.template.spec")
    except Wrong as wrong:
        yield str(wrong)


def _refuse_odd_pod(pod: Mapping[str, Any], at: str) -> None:
    entries_of(pod, "volumes", f"{at}.volumes")
    for group in GROUPS_OF_CONTAINERS:
        for place, container in enumerate(entries_of(pod, group, f"{at}.{group}")):
            entries_of(container, "volumeMounts", f"{at}.{group}[{place}].volumeMounts")
    if not pod.get("containers"):
        raise Wrong(f"{at}.containers", "missing; expected at least one container")
