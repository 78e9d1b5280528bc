"""``adapter_config.json``: the table of fields, and what a config means."""
