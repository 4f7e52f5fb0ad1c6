"""What people would rather see than read: patterns, positions and members, drawn and described."""

from formers.inspect.blocks import draw_block
from formers.inspect.cost import Cost, Costs
from formers.inspect.explain import explain_facts, subject
from formers.inspect.explanation import explanation
from formers.inspect.members import describe_member, list_members, member_facts, members_facts
from formers.inspect.parameters import parameter_parts
from formers.inspect.patterns import draw_pattern, pattern_facts, pattern_named, pattern_names, save_pattern
from formers.inspect.positions import draw_positions, run_table, save_positions, sinusoid_table

__all__ = [
    "Cost",
    "Costs",
    "describe_member",
    "draw_block",
    "draw_pattern",
    "draw_positions",
    "explain_facts",
    "explanation",
    "list_members",
    "member_facts",
    "members_facts",
    "parameter_parts",
    "pattern_facts",
    "pattern_named",
    "pattern_names",
    "run_table",
    "save_pattern",
    "save_positions",
    "sinusoid_table",
    "subject",
]
