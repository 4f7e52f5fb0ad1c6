"""What `make docs` makes beside the pages that are written by hand: formulas, copies of the source, the reference, the command line.

The site mirrors the repository: README.md is its first page, every other file stands at its own path with .html behind it. So a
relative link that works in the repository works in the site.
"""
