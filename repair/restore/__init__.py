"""A new base with a new model out of an old one's own texts."""

from repair.plan import RowsChange
from repair.store import Store


def model_change(store: Store, base_id: str, model_id: str, dimensions: int) -> RowsChange | None:
    """Return what tells the catalog the model of a base that had none."""
    raise NotImplementedError(store, base_id, model_id, dimensions)
