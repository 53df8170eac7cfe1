"""A rich table as plain text, for a prompt that prints what it was given."""

from typing import Any


def format_table(table: Any, width: int = 120) -> str:
    """The text of a table, without colours.

    >>> from rich.table import Table
    >>> table = Table("head", box=None, pad_edge=False)
    >>> table.add_row("3")
    >>> print(format_table(table))
    head
    3
    """
    from rich.console import Console  # takes a while to import, rarely needed

    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as got:
        console.print(table)
    return "\n".join(line.rstrip() for line in got.get().splitlines())
