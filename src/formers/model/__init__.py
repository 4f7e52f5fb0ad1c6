"""The spec, its checks, and the models built from it."""

from formers.model.build import build
from formers.model.check import check
from formers.model.inspection import Inspection
from formers.model.model import Model, Output, StackModel
from formers.model.modes import evaluating
from formers.model.respecify import respecified
from formers.model.save import load
from formers.model.seq2seq import Seq2Seq
from formers.model.spec import Spec

__all__ = ["Inspection", "Model", "Output", "Seq2Seq", "Spec", "StackModel", "build", "check", "evaluating", "load", "respecified"]
