"""Turns measurements into terminal text, PNG and SVG figures, GIF files and HTML pages."""
