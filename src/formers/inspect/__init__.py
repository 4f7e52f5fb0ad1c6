"""What people would rather see than read: attention, patterns, positions, spans, ponder times and members, drawn, described and counted."""

from formers.inspect.attention import attention_facts, draw_map, save_heads, save_map
from formers.inspect.attention_page import attention_page, save_attention_page
from formers.inspect.blocks import draw_block
from formers.inspect.bucket_pictures import draw_buckets, save_buckets
from formers.inspect.buckets import Buckets, buckets_facts, buckets_of, dropped_share
from formers.inspect.context import Contexts, context_facts, context_panels, context_words, run_contexts
from formers.inspect.cost import Cost, Costs
from formers.inspect.curves import draw_curves, save_panels
from formers.inspect.difficulty import Difficulty, difficulty_facts, run_difficulty
from formers.inspect.explain import explain_facts, subject
from formers.inspect.explanation import explanation
from formers.inspect.losses import Losses, losses_facts, losses_panel, run_losses
from formers.inspect.members import describe_member, list_members, member_facts, members_facts
from formers.inspect.moved import moved, moved_facts
from formers.inspect.parameters import parameter_parts
from formers.inspect.patterns import draw_pattern, pattern_facts, pattern_named, pattern_names, save_pattern
from formers.inspect.ponder import Ponder, by_step, ponder_facts, ponder_of
from formers.inspect.ponder_pictures import difficulty_table, draw_ponder, save_difficulty, save_ponder, steps_table
from formers.inspect.positions import draw_positions, positions_facts, run_table, save_positions, sinusoid_table
from formers.inspect.spans import draw_spans, save_spans, spans_facts, spans_of
from formers.inspect.tokens import token_labels
from formers.inspect.views import View, alignment_of, by_words, find_view, views_of

__all__ = [
    "Buckets",
    "Contexts",
    "Cost",
    "Costs",
    "Difficulty",
    "Losses",
    "Ponder",
    "View",
    "alignment_of",
    "attention_facts",
    "attention_page",
    "buckets_facts",
    "buckets_of",
    "by_step",
    "by_words",
    "context_facts",
    "context_panels",
    "context_words",
    "describe_member",
    "difficulty_facts",
    "difficulty_table",
    "draw_block",
    "draw_buckets",
    "draw_curves",
    "draw_map",
    "draw_pattern",
    "draw_ponder",
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
    "ponder_facts",
    "ponder_of",
    "positions_facts",
    "run_contexts",
    "run_difficulty",
    "run_losses",
    "run_table",
    "save_attention_page",
    "save_buckets",
    "save_difficulty",
    "save_heads",
    "save_map",
    "save_panels",
    "save_pattern",
    "save_ponder",
    "save_positions",
    "save_spans",
    "sinusoid_table",
    "spans_facts",
    "spans_of",
    "steps_table",
    "subject",
    "token_labels",
    "views_of",
]
