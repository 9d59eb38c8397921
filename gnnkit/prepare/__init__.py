"""The leader prepares: a graph or a store becomes what each rank reads."""
