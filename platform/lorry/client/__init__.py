"""The Python client::

from lorry.client import Client

with Client("127.0.0.1:50061", "lorry_...") as client:
    answer = client.generate("tenants/acme/adapters/pirate", messages=[{"role": "user", "content": "Hi"}])
    print(answer.text, answer.resolved.sha256)

``lorry.client.admin`` has the same for administrators and owners.
"""

from lorry.api.about import About
from lorry.client.aio import AsyncClient, AsyncStream
from lorry.client.channels import Tls
from lorry.client.requests import GenerateParams, Message
from lorry.client.results import Choice, Delta, Result
from lorry.client.retry import Retry
from lorry.client.sync import Client, Stream
from lorry.request import TokenLogprobs

__all__ = [
    "About",
    "AsyncClient",
    "AsyncStream",
    "Choice",
    "Client",
    "Delta",
    "GenerateParams",
    "Message",
    "Result",
    "Retry",
    "Stream",
    "Tls",
    "TokenLogprobs",
]
