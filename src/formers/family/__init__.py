"""The members: one recipe each, in one table."""

from formers.family.members import MEMBERS, Member, create, members, spec

__all__ = ["MEMBERS", "Member", "create", "members", "spec"]
