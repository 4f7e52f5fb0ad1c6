"""Evaluation: protocols, metrics and exact scores."""

from formers.evaluation.evaluate import Stopped, evaluate, evaluate_all
from formers.evaluation.exact_match import ExactMatch, ExactMatchMetrics, by_difficulty
from formers.evaluation.metrics import (
    ClassMetrics,
    ImageMetrics,
    LastWordMetrics,
    MaskedMetrics,
    Metrics,
    PairMetrics,
    Results,
    StoryMetrics,
    TextMetrics,
    bits,
    metrics_for,
    perplexity,
)
from formers.evaluation.ponder import PonderMetrics
from formers.evaluation.protocol import EvaluationSetup, Protocol, apply_protocol, is_text

__all__ = [
    "ClassMetrics",
    "EvaluationSetup",
    "ExactMatch",
    "ExactMatchMetrics",
    "ImageMetrics",
    "LastWordMetrics",
    "MaskedMetrics",
    "Metrics",
    "PairMetrics",
    "PonderMetrics",
    "Protocol",
    "Results",
    "Stopped",
    "StoryMetrics",
    "TextMetrics",
    "apply_protocol",
    "bits",
    "by_difficulty",
    "evaluate",
    "evaluate_all",
    "is_text",
    "metrics_for",
    "perplexity",
]
