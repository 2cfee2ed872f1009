"""Where a read begins and ends, and the values that options' texts become."""
