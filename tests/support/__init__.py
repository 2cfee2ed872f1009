"""Helpers that several test modules share: servers, clients, disks, command shells, clusters."""
