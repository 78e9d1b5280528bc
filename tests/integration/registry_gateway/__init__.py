"""A gateway on a real registry."""
