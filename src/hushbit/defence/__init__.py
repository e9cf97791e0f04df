"""Ballot filter: the server removes ballots of colluding users; it reads nothing but ballots."""
