"""Other people's compressors and private mean estimators, for comparison only.

Written from their papers' definitions. Every module has `mean_estimate(vectors, ..., rng)`, which
carries the vectors of all users to the server and returns a `Carried`: the mean that the server
holds and the bits that an entry cost. Randomness comes from the generator that the caller gives,
so nothing here may leave a machine.

without privacy   eden, quicfl, qsgd, uveqfed, topk
whole message     privunit, privhs, sqkr (pure epsilon for a vector of l2 norm up to 1)
"""
