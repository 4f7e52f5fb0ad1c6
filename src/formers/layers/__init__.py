"""Parts of the family as plain nn.Modules, for use in other models; they run the same code as the members."""

from formers.layers.act import ACT
from formers.layers.attention import AdaptiveSpanAttention, LSHAttention, RelativeAttention, SelfAttention
from formers.layers.block import TransformerBlock
from formers.layers.gated import Gated
from formers.layers.reversible import Reversible

__all__ = [
    "ACT",
    "AdaptiveSpanAttention",
    "Gated",
    "LSHAttention",
    "RelativeAttention",
    "Reversible",
    "SelfAttention",
    "TransformerBlock",
]
