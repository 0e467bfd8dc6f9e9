"""How the errors of clients that people use are known: no client is imported. The rule: engine.md F25."""

from __future__ import annotations

from typing import Final

_UNREACHED: Final = frozenset({
    ("aiohttp", "ClientConnectionError"), ("aiohttp", "ClientPayloadError"), ("anthropic", "APIConnectionError"),
    ("httpcore", "NetworkError"), ("httpcore", "RemoteProtocolError"), ("httpcore", "TimeoutException"),
    ("httpx", "NetworkError"), ("httpx", "RemoteProtocolError"), ("httpx", "TimeoutException"),
    ("openai", "APIConnectionError"), ("requests", "ChunkedEncodingError"), ("requests", "ConnectionError"),
    ("requests", "Timeout"), ("urllib3", "MaxRetryError"), ("urllib3", "ProtocolError"), ("urllib3", "TimeoutError"),
})  # fmt: skip
"""Package and class of what such an error is or derives from."""


def unreached(error: BaseException) -> bool:
    """Return whether it is a known client's error that it couldn't reach a service, or lost the connection to it."""
    return any((str(each.__module__).partition(".")[0], each.__name__) in _UNREACHED for each in type(error).__mro__)
