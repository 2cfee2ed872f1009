"""Acknowledgements: what is pending, what each kind of ack does, what is redelivered and when."""
