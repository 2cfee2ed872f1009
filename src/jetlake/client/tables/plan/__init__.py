"""What is read and how it is accounted for: pure, from what the server said."""
