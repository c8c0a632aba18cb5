"""Environments of the library verifiers."""
