"""Pull consumers: fetch and continuous pulls, their flow control as pure state machines."""
