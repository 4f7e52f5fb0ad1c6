"""Residual connections: how the output of a sublayer is added to its input."""

from formers.residual.base import Residual
from formers.residual.gated import Gated
from formers.residual.norm import Bare, NormOnly, Plain, PostNorm, PreNorm
from formers.residual.reversible import Reversible

__all__ = ["Bare", "Gated", "NormOnly", "Plain", "PostNorm", "PreNorm", "Residual", "Reversible"]
