"""The public test kit: what shows that a store, or an agent, keeps the promises of this package."""

from .crash_report import CrashFailure, CrashReport
from .crashing import crash_points
from .store_contract import StoreContract
from .world import World, WorldEffect

__all__ = ["CrashFailure", "CrashReport", "StoreContract", "World", "WorldEffect", "crash_points"]
