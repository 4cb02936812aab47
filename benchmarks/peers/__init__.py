"""Clients that are compared: each is run as a process of its own and says what it measured."""
