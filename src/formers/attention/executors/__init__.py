"""Executors: implementations of attention. `dense` is the equation; the others are equal to it and faster."""
