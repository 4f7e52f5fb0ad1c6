"""The figures that everybody knows, drawn from a spec, a pattern or a model: `formers show figure`."""

from formers.inspect.draw.figures.catalogue import FIGURES, Entry
from formers.inspect.draw.figures.registry import figure_facts, figure_options, save_named_figure

__all__ = ["FIGURES", "Entry", "figure_facts", "figure_options", "save_named_figure"]
