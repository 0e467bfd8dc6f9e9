"""What becomes of a run that ends nothing, and that its owner leaves or nobody goes on with."""

from __future__ import annotations

from runjournal.engine import failures as f
from runjournal.log import events as e


def left_by(error: BaseException) -> e.RunWaiting | e.RunRequeued:
    """Return what becomes of a run that ends nothing and that its owner leaves: it waits for other code, or is free."""
    stop = f.stop_in(error)
    if stop is not None and isinstance(
        stop, f.Mistake | f.BROKEN
    ):  # people look at the run to see why it doesn't get on: engine.md X3
        stored, _ = f.error_of(stop)
        return e.RunRequeued("released", error={"type": stored["type"], "message": stored["message"]})
    if not isinstance(stop, f.PlanChanged | f.StepDiverged):
        return e.RunRequeued("released")
    where = {"step": stop.step, "differs": stop.what} if stop.step else {}
    return e.RunWaiting([{"kind": "code", "id": type(stop).__name__, **where}], why=f.storable_text(stop.message))


def restart_loop(why: str) -> e.RunWaiting:
    """Return the wait of a run that doesn't get on, for a person's `resume`."""
    return e.RunWaiting([{"kind": "recoveries", "id": "restart_loop"}], why=why)
