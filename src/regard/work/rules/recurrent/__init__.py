"""Rules of recurrent cells: gates, chain rule, Jacobians, attention over past states."""
