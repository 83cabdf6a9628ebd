"""How the commands print data: a table for people, JSON for programs (`-o json`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

CELL_CHARACTERS_MAX = 60


def output_option(command: Command) -> Command:
    """Adds `-o text|json`, as the argument `output`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="A table for people or JSON for programs.",
    )(command)


def print_json(data: object) -> None:
    """One JSON text, indented, on stdout."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=False))


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    """Columns as kubectl prints them; `empty` instead where there is no row."""
    if not rows:
        click.echo(empty)
        return
    cells = [list(headings), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    for row in cells:
        click.echo("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    text = "".join(character if character.isprintable() else " " for character in text)
    return text if len(text) <= CELL_CHARACTERS_MAX else text[: CELL_CHARACTERS_MAX - 1] + "…"
