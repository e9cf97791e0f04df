"""Integer counters, the set of voters, and the estimate."""
