"""Experiments that train models to show a claim: one file a claim."""
