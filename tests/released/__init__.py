"""What released versions have written: a stage, a meta database and a target of each, which every later one reads."""
