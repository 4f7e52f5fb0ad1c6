"""Measurements of models, runs, patterns and this machine, as plain values and JSON-ready facts. Nothing here draws."""
