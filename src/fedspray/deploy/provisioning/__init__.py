"""Making and changing a federation: certificates, kits, members."""
