"""What each member is for, from its paper: a design, not a figure of quality."""

from __future__ import annotations

from typing import NamedTuple


class Guide(NamedTuple):
    """What a member is for, where that was published, and whether it is here only to be compared with."""

    purpose: str
    paper: str
    baseline: bool = False
    only: tuple[str, ...] = ()
    """The tasks that it is recommended for; all that it can do where there is none."""


GUIDES = {
    "transformer": Guide("the plain encoder-decoder: every target token sees the whole source", "Vaswani et al., 2017"),
    "encoder": Guide("the plain encoder: every token sees every other, in both directions", "Vaswani et al., 2017"),
    "decoder": Guide("the plain decoder: every token sees all before it, with nothing to tune", "Vaswani et al., 2017"),
    "character-transformer": Guide("deep models of characters, with extra losses in the middle layers", "Al-Rfou et al., 2018"),
    "transformer-xl": Guide("running text: a memory of the segment before carries context past the row", "Dai et al., 2019"),
    "gtrxl": Guide("agents: gates keep training stable, a memory spans the episode", "Parisotto et al., 2019", only=("agents",)),
    "adaptive-span": Guide("long running text where most heads need to look back only a little", "Sukhbaatar et al., 2019"),
    "sparse-transformer": Guide("long rows with a regular structure: two sparse patterns reach every position", "Child et al., 2019"),
    "image-transformer": Guide("images: each value sees the values near it on the grid", "Parmar et al., 2018"),
    "linformer": Guide("long rows of a fixed length, read in both directions, with keys projected to a few", "Wang et al., 2020"),
    "bigbird": Guide("long documents read in both directions: windows, random blocks and global blocks", "Zaheer et al., 2020"),
    "reformer": Guide("very long rows in little memory: hashing finds the keys, layers are reversible", "Kitaev et al., 2020"),
    "rnn": Guide("the recurrent baseline: constant time and memory a token", "Zaremba et al., 2014", baseline=True),
    "seq2seq": Guide("the recurrent encoder-decoder baseline", "Bahdanau et al., 2014", baseline=True),
    "word-window": Guide("the baseline of a few words before the next", "Bengio et al., 2003", baseline=True),
    "act-rnn": Guide("recurrent steps that halt by themselves, on small tasks", "Graves, 2016", baseline=True),
    "universal-transformer": Guide(
        "small algorithmic tasks: one block applied several times, few parameters", "Dehghani et al., 2018", only=("exercise", "translate")
    ),
}
"""By member."""

PLAIN = {
    "text": "decoder",
    "masked": "encoder",
    "classify": "encoder",
    "translate": "transformer",
    "images": "decoder",
    "exercise": "decoder",
}
"""By task: the member with plain attention over all pairs, which the others are compared with."""
FITTING = {"images": "image-transformer"}
"""By task: the member that was designed for it."""
