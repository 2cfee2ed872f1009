"""Ready-made pipelines on Spark: archive, replay, health, dead letters, SQL; each runs with one line."""
