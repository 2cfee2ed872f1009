"""All tests of jetlake; helpers that several test modules share are in `tests.support`."""
