"""Speed, measured: ratios of things run alternately in one process."""
