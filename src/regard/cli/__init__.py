"""The command line: one file a command."""


def main() -> None:
    """Entry point of `regard`."""
    raise SystemExit("not yet")
