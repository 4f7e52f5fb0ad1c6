"""What people would rather see than read: attention, patterns, positions, spans and members, drawn, described and counted."""

from formers.inspect.attention import attention_facts, draw_map, save_heads, save_map
from formers.inspect.attention_page import attention_page, save_attention_page
from formers.inspect.blocks import draw_block
from formers.inspect.bucket_pictures import draw_buckets, save_buckets
from formers.inspect.buckets import Buckets, buckets_facts, buckets_of, dropped_share
from formers.inspect.context import Contexts, context_facts, context_panels, context_words, run_contexts
from formers.inspect.cost import Cost, Costs
from formers.inspect.curves import draw_curves, save_panels
from formers.inspect.explain import explain_facts, subject
from formers.inspect.explanation import explanation
from formers.inspect.losses import Losses, losses_facts, losses_panel, run_losses
from formers.inspect.members import describe_member, list_members, member_facts, members_facts
from formers.inspect.moved import moved, moved_facts
from formers.inspect.parameters import parameter_parts
from formers.inspect.patterns import draw_pattern, pattern_facts, pattern_named, pattern_names, save_pattern
from formers.inspect.positions import draw_positions, positions_facts, run_table, save_positions, sinusoid_table
from formers.inspect.spans import draw_spans, save_spans, spans_facts, spans_of
from formers.inspect.tokens import token_labels
from formers.inspect.views import View, alignment_of, by_words, find_view, views_of

__all__ = [
    "Buckets",
    "Contexts",
    "Cost",
    "Costs",
    "Losses",
    "View",
    "alignment_of",
    "attention_facts",
    "attention_page",
    "buckets_facts",
    "buckets_of",
    "by_words",
    "context_facts",
    "context_panels",
    "context_words",
    "describe_member",
    "draw_block",
    "draw_buckets",
    "draw_curves",
    "draw_map",
    "draw_pattern",
    "draw_positions",
    "draw_spans",
    "dropped_share",
    "explain_facts",
    "explanation",
    "find_view",
    "list_members",
    "losses_facts",
    "losses_panel",
    "member_facts",
    "members_facts",
    "moved",
    "moved_facts",
    "parameter_parts",
    "pattern_facts",
    "pattern_named",
    "pattern_names",
    "positions_facts",
    "run_contexts",
    "run_losses",
    "run_table",
    "save_attention_page",
    "save_buckets",
    "save_heads",
    "save_map",
    "save_panels",
    "save_pattern",
    "save_positions",
    "save_spans",
    "sinusoid_table",
    "spans_facts",
    "spans_of",
    "subject",
    "token_labels",
    "views_of",
]
