"""What can be changed: each change is prepared, shown with its command, and run when it is confirmed."""
