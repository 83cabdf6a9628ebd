"""Testing kit for workers: a store in memory with a clock that one can move."""
