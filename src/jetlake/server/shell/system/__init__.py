"""The system account: requests about the server and its accounts, commands to it, and the events of its clients."""
