"""The demonstration: the whole system once, with things going wrong, and counts that prove that nothing was lost."""
