"""The keys by which bases and items are ordered, for other programs."""

from regraft.formats.cherry_v2.order_keys import (
    key_after,
    order_key,
)

__all__ = [
    "key_after",
    "order_key",
]
