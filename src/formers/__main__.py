"""`python -m formers` is the `formers` command."""

from formers.cli import main

main()
