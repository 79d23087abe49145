"""Running an algorithm: one training loop, and the engines that carry its messages."""
