"""Makes ALFWorld games out of the floor plans in alfworld's wheel: data for a machine without the real games."""
