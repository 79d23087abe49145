"""Every promise of a method, kept or broken."""

from method import FedAvgM

import fedspray as fs

fs.testing.check_algorithm(FedAvgM)
print("every promise is kept")
