"""sisctl, the command-line tool (the extra `cli`)."""


def main() -> None:
    """The console script."""
    try:
        from sis.cli.main import run
    except ImportError as error:
        if error.name not in ("typer", "rich"):
            raise
        raise SystemExit(f"sisctl needs {error.name}: pip install 'sis-ratio[cli]'") from None
    run()
