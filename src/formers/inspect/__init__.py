"""Measurements of attention, patterns, positions, spans, ponder times, costs and members (`measure`), and their drawings (`draw`)."""

from formers.inspect.draw.attention import draw_map, save_heads, save_map
from formers.inspect.draw.attention_page import attention_page, save_attention_page
from formers.inspect.draw.block import draw_block
from formers.inspect.draw.buckets import draw_buckets, save_buckets
from formers.inspect.draw.context_length import context_panels, context_words
from formers.inspect.draw.curves import draw_curves, save_panels
from formers.inspect.draw.explain import explanation
from formers.inspect.draw.losses import losses_panel
from formers.inspect.draw.members import describe_member, list_members
from formers.inspect.draw.patterns import draw_pattern, save_pattern
from formers.inspect.draw.ponder import difficulty_table, draw_ponder, save_difficulty, save_ponder, steps_table
from formers.inspect.draw.positions import draw_positions, save_positions
from formers.inspect.draw.spans import draw_spans, save_spans
from formers.inspect.measure.attention import View, alignment_of, attention_facts, by_words, find_view, views_of
from formers.inspect.measure.buckets import Buckets, buckets_facts, buckets_of, dropped_share
from formers.inspect.measure.context_length import Contexts, context_facts, run_contexts
from formers.inspect.measure.costs import Cost, Costs
from formers.inspect.measure.difficulty import Difficulty, difficulty_facts, run_difficulty
from formers.inspect.measure.explain import explain_facts, subject
from formers.inspect.measure.leak import moved, moved_facts
from formers.inspect.measure.losses import Losses, losses_facts, run_losses
from formers.inspect.measure.members import member_facts, members_facts
from formers.inspect.measure.parameters import parameter_parts
from formers.inspect.measure.patterns import pattern_facts, pattern_named, pattern_names
from formers.inspect.measure.ponder import Ponder, by_step, ponder_facts, ponder_of
from formers.inspect.measure.positions import positions_facts, run_table, sinusoid_table
from formers.inspect.measure.spans import spans_facts, spans_of
from formers.inspect.measure.token_labels import token_labels

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
