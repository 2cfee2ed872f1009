"""The options of `format("jetstream")` and the values that their texts become."""
