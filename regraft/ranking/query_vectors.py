"""What a search by meaning asks for: something that makes the query's vector, and the reason where there is none."""

from __future__ import annotations

from collections.abc import Callable

#: Makes a query's vector, for the id of the model that the vectors are of.
Embed = Callable[[str], tuple[float, ...]]


class NoVector(Exception):
    """Why there is no vector of a query that could be compared, for a person."""
