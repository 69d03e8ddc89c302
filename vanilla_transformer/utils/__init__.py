"""Plumbing that has nothing to do with models: atomic writes, errors for people, names, quiet libraries."""
