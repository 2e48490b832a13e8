"""One function for each fault that two recordings can have.

The limits lie far from what recordings of real engines give without the fault and with it; docs/compare.md has the
numbers.
"""
