"""Building blocks over a leading client axis: operations, optimizer, initial weights, state trees."""
