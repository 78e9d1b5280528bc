"""A month's tokens between gateways: leases of them, and what requests took of those.

The ledger of usage is the truth. A row of it says which leases its request stood on (``Charge``), and the transaction
that appends the row adds its tokens to them: so what a quota's month and its leases have spent is, at any moment and
after any crash, the tokens of the ledger's rows, each once. A lease only bounds what gateways may promise meanwhile.

The bound: a month's tokens are exceeded by no more than what expired leases had been granted and the ledger did not
know of when they expired: requests of a gateway that could not reach the registry for ``LEASE_S`` + ``CLOCKS_S``, or
rows that its spool held when it was killed and that came with its next start. While gateways reach the registry nothing
is exceeded, except by a limit that is lowered beneath what had been granted before.
"""
