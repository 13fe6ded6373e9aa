"""Options of the studies of ``kedrl study`` that have a module of their own."""
