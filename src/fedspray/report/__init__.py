"""Tables, figures and files that people look at."""
