"""From an organisation's own tables to graphs, by a schema that people write down and agree on."""
