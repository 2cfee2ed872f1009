"""Segment indexes: the files from which the index of full segments is read, and the memory that this takes."""
