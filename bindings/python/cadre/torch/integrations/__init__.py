"""cadre inside other projects. Each module is for one of them, and is imported by whoever uses it: none is imported here."""
