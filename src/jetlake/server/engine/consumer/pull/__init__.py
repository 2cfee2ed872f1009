"""Pull delivery, pull requests and their queue, the policies of priority groups."""
