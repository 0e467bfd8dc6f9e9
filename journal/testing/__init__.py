"""The public test kit: what shows that a store, or an agent, keeps the promises of this package."""

from .store_contract import StoreContract

__all__ = ["StoreContract"]
