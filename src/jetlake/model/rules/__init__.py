"""The server's checks of configurations, in its order, with its error codes and texts."""
