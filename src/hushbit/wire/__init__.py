"""Keys, coins, ballots and atomic files."""
