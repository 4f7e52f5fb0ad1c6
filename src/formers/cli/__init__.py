"""The command line: one file a verb."""

from formers.cli.app import main

__all__ = ["main"]
