"""The engine of an audit: findings, the collector that counts them, the page that shows them. It imports no system."""
