"""What is guaranteed and what has been spent; this package does not depend on any mechanism.

binomial      law of flipped bits, binomial tails, Clopper-Pearson bounds
composition   exact composition of randomized-response bits
renyi         bounds by Renyi divergences and zCDP
gaussian      exact conversion of the Gaussian mechanism
central       guarantees against those who see only tallies
accountant    costs, limits, and the smallest bound that these rules prove
guarantee     the guarantee of one mechanism per bit, per message and per run; k-anonymity
ledger_file   rows on the disk: append-only, linked by digests, with a marker beside the file
ledger        what each user has spent, charged before a ballot is sent
"""
