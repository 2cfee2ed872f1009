"""Tests in processes that have lost what macOS and Windows lack."""
