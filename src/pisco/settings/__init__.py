"""What experiment files and federation files share: TOML, tables that are checked, and settings of named choices."""
