"""The engine of changes: plan, apply, record, undo. It imports no system."""
