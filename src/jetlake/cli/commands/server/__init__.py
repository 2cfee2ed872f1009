"""`jetlake server …`, `jetlake account …` and `jetlake events …`."""
