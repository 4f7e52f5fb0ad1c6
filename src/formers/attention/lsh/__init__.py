"""LSH attention (Reformer): hashing, the reference, the schedule of chunks, the kernel and decoding."""

from formers.attention.lsh.layer import LSH, ByLayer, with_rounds

__all__ = ["LSH", "ByLayer", "with_rounds"]
