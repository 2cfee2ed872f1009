"""The JSON codec, and the field types that every value of the model shares."""
