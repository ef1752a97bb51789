"""The change engine: plan changes of a store, apply them, record them, undo them. It imports no system."""
