"""Audit and inspect knowledge bases of rsclaw."""
