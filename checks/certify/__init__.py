"""``regraft certify``: prove that texts are still found by their vectors and words (``docs/certify.md``)."""
