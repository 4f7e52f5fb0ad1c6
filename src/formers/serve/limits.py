"""What one request, and all of them together, may ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Caps of the server; a request beyond one is refused in a sentence that names it."""

    body: int = 8 << 20
    """Bytes of a request's body."""
    drained: int = 64 << 20
    """Bytes of a longer body that are read and dropped, so that its sender can read the refusal."""
    body_seconds: float = 20.0
    """Seconds in which a body must arrive."""
    depth: int = 16
    """Lists and objects within one another in JSON."""
    texts: int = 256
    """Prompts times n."""
    prompt_tokens: int = 262_144
    """Tokens of all prompts of a request."""
    max_tokens: int = 16_384
    """Tokens that are written for one prompt."""
    new_tokens: int = 131_072
    """Prompts times n times max_tokens."""
    logprobs: int = 20
    """Alternatives that are told for each token."""
    stops: int = 16
    """Stop strings."""
    queue: int = 8
    """Requests that wait for the model."""
    active: int = 4
    """Requests that the model works on in turn, a token each."""
    seconds: float = 300.0
    """Seconds from a request to the end of its answer."""
    streams: int = 64
    """Event streams that are open at once, of pages and of completions."""
    models: int = 4
    """Models in memory."""
    runs: int = 10_000
    """Runs of the folder that are shown."""
    listed: int = 500
    """Runs in one answer."""
    curves: int = 200
    """Runs whose curves are in one answer."""
    points: int = 1000
    """Points of a curve."""
    columns: int = 256 << 20
    """Bytes of metrics in memory; beyond them the runs not asked for longest are read again when they are."""
    samples: int = 100
    """Samples of a run that are kept, the last ones."""
    look_tokens: int = 4096
    """Tokens whose attention is shown."""
    look_weights: int = 1 << 27
    """Weights of one layer that are computed at once."""
    look_bytes: int = 512 << 20
    """Bytes of attention maps in memory."""
    looks: int = 4
    """Texts whose attention maps are in memory."""
    images: int = 64
    """Images of one request."""
    pattern_pairs: int = 1 << 20
    """Pairs of a pattern that is drawn."""


LIMITS = Limits()
