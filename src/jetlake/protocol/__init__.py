"""Bytes to frames and frames to bytes: subjects, headers, parser, encoder and unique names, without any I/O."""
