"""What crosses between the machines, and what it must look like."""
