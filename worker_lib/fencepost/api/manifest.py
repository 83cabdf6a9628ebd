"""What a person writes in a file: parsed, checked as the API server would, and told what is wrong where.

Guarantees: a manifest that is accepted here is accepted by the API server, and one that the schema refuses
there is refused here, with a sentence that has the path, what was found and what is allowed. Checked beyond
the schema: bytes of names and requests, the size of the whole spec, and the object that a continuation makes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from fencepost.api import names, read, v1alpha1
from fencepost.api.batch_job import problems_of_batch_job
from fencepost.api.documents import DocumentUnreadable, documents_of
from fencepost.api.sentences import missing_or_misspelt, sentences
from fencepost.protocol import limits
from fencepost.protocol.job import JobSpec
from fencepost.protocol.payload import stored_json_size
from fencepost.protocol.task import TaskSpec

MODELS: Final[dict[str, type[BaseModel]]] = {
    names.LEASED_TASK: v1alpha1.LeasedTask,
    names.FAN_OUT_JOB: v1alpha1.FanOutJob,
}
NAMESPACE_DEFAULT: Final = "default"
PROBLEMS_SHOWN_MAX: Final = 10
AFTER: Final = (
    (names.API_VERSION, names.LEASED_TASK),
    (names.API_VERSION, names.FAN_OUT_JOB),
    ("batch/v1", "Job"),
)

_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_METADATA: Final = (
    "name",
    "namespace",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "managedFields",
    "selfLink",
)


class ManifestUnreadable(ValueError):  # noqa: N818 - the sentences a reader sees
    """One sentence a line, each with the file, the path and what is allowed there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskManifest:
    """A LeasedTask to be made."""

    key_name: str
    namespace: str
    spec: TaskSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class JobManifest:
    """A FanOutJob to be made. `needs_server_side`: too large for client-side `kubectl apply`."""

    key_name: str
    namespace: str
    spec: JobSpec
    needs_server_side: bool = False


def load_manifests(text: str, *, source: str) -> list[JobManifest | TaskManifest]:
    """All manifests of a YAML or JSON text; `source` is its name in messages.

    Raises `ManifestUnreadable` with everything that is wrong, ten sentences at most.
    """
    try:
        documents = documents_of(text)
    except DocumentUnreadable as error:
        raise ManifestUnreadable(f"{source}: {error}") from None
    if not documents:
        raise ManifestUnreadable(f"{source}: there is no manifest in it")
    found: list[JobManifest | TaskManifest] = []
    problems: list[str] = []
    for number, document in enumerate(documents, start=1):
        where = source if len(documents) == 1 else f"{source} (document {number})"
        wrong = [f"{where}: {problem}" for problem in _problems(document, "")]
        problems += wrong
        if not wrong:
            found.append(_manifest(document))
    if problems:
        raise ManifestUnreadable("\n".join(_first(problems)))
    return found


def problems_of(document: Mapping[str, Any]) -> list[str]:
    """All that is wrong with one object that is to be made, ten sentences at most."""
    return _first(list(_problems(document, "")))


def _first(problems: list[str]) -> list[str]:
    more = len(problems) - PROBLEMS_SHOWN_MAX
    return [*problems[:PROBLEMS_SHOWN_MAX], *([f"and {more} more"] if more > 0 else [])]


def _manifest(document: Mapping[str, Any]) -> JobManifest | TaskManifest:
    metadata, spec = document["metadata"], document["spec"]
    name, namespace = metadata["name"], metadata.get("namespace") or NAMESPACE_DEFAULT
    if document["kind"] == names.LEASED_TASK:
        return TaskManifest(key_name=name, namespace=namespace, spec=read.task_spec(spec))
    large = stored_json_size(spec) > limits.JOB_SPEC_BYTES_MAX_CLIENT_SIDE
    return JobManifest(key_name=name, namespace=namespace, spec=read.job_spec(spec), needs_server_side=large)


def _problems(document: object, at: str) -> Iterator[str]:
    """All that is wrong with one object, each as `path: sentence`; `at` is the path that leads to it."""
    if not isinstance(document, Mapping):
        yield f"{at or 'the document'}: expected a LeasedTask or FanOutJob, got {document!r:.60}"
        return
    kind = document.get("kind")
    if kind is None:
        yield f"{at}{missing_or_misspelt('kind', document, 'LeasedTask or FanOutJob')}"
        return
    if not isinstance(kind, str) or kind not in MODELS:
        yield f"{at}kind: {kind!r:.60} is none of LeasedTask, FanOutJob"
        return
    without_status = {key: value for key, value in document.items() if key != "status"}
    wrong = list(sentences(MODELS[kind], without_status, at))
    if not at:
        wrong += _problems_of_metadata(document.get("metadata"))
    yield from wrong
    if not wrong:
        yield from _beyond_the_schema(kind, document["spec"], f"{at}spec")


def _problems_of_metadata(metadata: object) -> Iterator[str]:
    if not isinstance(metadata, Mapping):
        return
    for key in metadata:
        if key not in _METADATA:
            yield f"metadata.{missing_or_misspelt(key, metadata, _METADATA)}"
    yield from _problem_of_name(metadata)
    namespace = metadata.get("namespace", NAMESPACE_DEFAULT)
    if not isinstance(namespace, str) or not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", namespace):
        yield f"metadata.namespace: {namespace!r:.80} is no DNS label of 1 to 63 of a-z, 0-9 and -"
    for part, known in (("annotations", {names.BRANCH}), ("labels", {names.JOB_UID})):
        yield from _problems_of_texts(f"metadata.{part}", metadata.get(part), known)


def _problem_of_name(metadata: Mapping[str, Any]) -> Iterator[str]:
    name = metadata.get("name")
    if name is None:
        yield "metadata.name: missing; give the object a name, so that a second run finds it again"
    elif (
        not isinstance(name, str)
        or len(name) > limits.OBJECT_NAME_CHARACTERS_MAX
        or not _SUBDOMAIN.fullmatch(name)
    ):
        yield (
            f"metadata.name: {name!r:.80} is no object name: 1 to {limits.OBJECT_NAME_CHARACTERS_MAX} of "
            "a-z, 0-9, - and ., beginning and ending with a letter or digit"
        )


def _problems_of_texts(at: str, texts: object, known: set[str]) -> Iterator[str]:
    if texts is None:
        return
    if not isinstance(texts, Mapping):
        yield f"{at}: expected keys with texts, got {texts!r:.60}"
        return
    for key, value in texts.items():
        if not isinstance(value, str):
            yield f"{at}[{key!r}]: expected text, got {value!r:.60}: quote it"
        if key.startswith(f"{limits.GROUP}/") and key not in known:
            yield f"{at}[{key!r}]: a new object carries no lease: remove it"


def _beyond_the_schema(kind: str, spec: Mapping[str, Any], at: str) -> Iterator[str]:
    try:
        parsed = read.task_spec(spec) if kind == names.LEASED_TASK else read.job_spec(spec)
    except read.Unreadable as refused:
        yield f"{at.removesuffix('spec')}{refused}"
        return
    if isinstance(parsed, JobSpec):
        yield from _problems_of_branches(parsed, at)
        yield from _problems_of_continuation(spec.get("continuation"), f"{at}.continuation.template")
        size = stored_json_size(spec)
        if size > limits.JOB_SPEC_BYTES_MAX:
            yield f"{at}: it takes {size} bytes, over the limit of {limits.JOB_SPEC_BYTES_MAX}"


def _problems_of_branches(spec: JobSpec, at: str) -> Iterator[str]:
    first: dict[str, int] = {}
    for place, branch in enumerate(spec.branches):
        path = f"{at}.branches[{place}].name"
        size = limits.text_size(branch.name)
        if size > limits.BRANCH_NAME_BYTES_MAX:
            yield f"{path}: it takes {size} bytes of UTF-8, over the limit of {limits.BRANCH_NAME_BYTES_MAX}"
        if branch.name in first:
            yield f"{path}: {branch.name[:60]!r} is the name of branches[{first[branch.name]}] too"
        first.setdefault(branch.name, place)


def _problems_of_continuation(continuation: object, at: str) -> Iterator[str]:
    """The object that is made after the join, checked now and not when it is too late."""
    if not isinstance(continuation, Mapping):
        return
    yield from problems_of_template(continuation["template"], at)


def problems_of_template(template: Mapping[str, Any], at: str) -> Iterator[str]:
    """Why no object can be made of the template of a continuation, each as `path: sentence`."""
    yield from _problems_of_metadata_to_keep(template.get("metadata"), f"{at}.metadata")
    spec = template.get("spec")
    if (template["apiVersion"], template["kind"]) not in AFTER:
        yield (
            f"{at}: {template['apiVersion']} {template['kind']} cannot be a continuation, expected a "
            f"LeasedTask or FanOutJob of {names.API_VERSION}, or a Job of batch/v1"
        )
    elif template["kind"] in MODELS:
        yield from _problems({**template, "metadata": {}}, f"{at}.")
    elif spec is None:
        yield f"{at}.spec: missing; expected the spec of a batch/v1 Job"
    elif not isinstance(spec, Mapping):
        yield f"{at}.spec: expected an object, got {spec!r:.80}"
    else:
        yield from problems_of_batch_job(spec, f"{at}.spec")


def _problems_of_metadata_to_keep(metadata: object, at: str) -> Iterator[str]:
    """Of the metadata of a template only labels and annotations are kept, but for keys of ours."""
    if metadata is None:
        return
    if not isinstance(metadata, Mapping):
        yield f"{at}: expected an object, got {metadata!r:.60}"
        return
    for part in ("labels", "annotations"):
        texts = metadata.get(part)
        ours = {key for key in texts if isinstance(key, str)} if isinstance(texts, Mapping) else set()
        yield from _problems_of_texts(f"{at}.{part}", texts, ours)
