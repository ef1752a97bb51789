"""Auditing and inspecting a knowledge base of rsclaw."""
