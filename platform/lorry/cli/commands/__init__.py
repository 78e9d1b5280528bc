"""The commands by group: each module's ``register`` adds its own to the parser and names what runs them. Heavy imports
stay inside what runs, so that ``lorry --help`` and every command against a running platform need no server packages."""
