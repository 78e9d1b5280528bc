"""Tables and connections. SQL itself is in the domains' ``repository`` modules."""
