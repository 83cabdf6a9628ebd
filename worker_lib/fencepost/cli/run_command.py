"""`fencepost run`: a manifest on this machine, with the same worker and the same outcome as on a cluster."""

from __future__ import annotations

from pathlib import Path

import click

from fencepost.cli.app import load_worker


@click.command()
@click.argument("manifest", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--app", required=True, help="The worker, as module:variable.")
@click.option(
    "--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="How many worker processes."
)
@click.option(
    "--store",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="FENCEPOST_STORE",
    help="The store's file. Default: NAME.fencepost.db beside the manifest.",
)
def run(manifest: Path, app: str, workers: int, store: Path | None) -> int:
    """Run the jobs and tasks of MANIFEST to their end, without a cluster.

    \b
    Examples:
      fencepost run examples/checksums/job.yaml --app examples.checksums.worker:worker
      fencepost run job.yaml --app feeds:worker --workers 4 --store feeds.db

    Killed at any point and started again with the same store, it goes on where it was and ends with the same
    snapshot digest. Exit codes: 0 every job Succeeded, 1 one Failed, 2 wrong input
    or another run has the store, 20 it waits for a person or a report, 21 the workers keep dying, 22 the
    store could not be used for minutes (a full disk), 61 APP cannot be used, 130 interrupted: the same
    command goes on.
    """
    served = load_worker(app).handlers  # says what is wrong with it before anything is started
    from fencepost.local.run import run_manifest

    return run_manifest(manifest, app, workers=workers, store=store, served=served)
