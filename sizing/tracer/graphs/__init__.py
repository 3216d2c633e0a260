"""A user's model as a chain of operators or modules, from which stages are cut."""
