"""Sockets, HTTP/1.1 and event streams, stamped on arrival. Knows nothing of language models."""
