"""What the preview of Cherry Studio v2 wrote."""
