"""Attacks on a round of ballots, and the defences of a server that sees nothing but ballots."""
