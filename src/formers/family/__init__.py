"""The members: each a recipe that reads like its section of the literature, in one explicit table."""

from formers.family.members import MEMBERS, Member, create, members, spec

__all__ = ["MEMBERS", "Member", "create", "members", "spec"]
