"""Every attack: updates, ballots, data, audit and inversion; here are the names of simulated ones.

ones, flip            the attacks of the paper: constant bits, random flips; mean zero (`ballots`)
directed              every bit is against the true mean; decoding multiplies it by 1/(2p-1)
directed-stealth      an extreme user: against the mean, twice the longest honest update
scaled                the user's own update times -20 (model replacement)
inner-product         -mean: the sum keeps its direction but loses 2f of its length
little                mean - z · spread, with the largest z that the spread of the majority hides
sybils                four groups, each an extreme user with a direction of its own
adaptive              against the mean, as far as a defence that sums scores allows (`adaptive`)
mirror                the user's own update with its part along the mean reversed
cancel                a multiple of minus the honest mean that makes the mean of all users zero
decoys                half of the attackers are extreme users; the others push 4.5 sigma each
sleepers              honest for 15 rounds, then extreme users
rotating              extreme users with one direction, 45 degrees from -mean, new in every round
two-coalitions        half push against the mean, half in one other direction
fresh-identities      against the mean, at the clip, under identities that are new in every round
norm-high, norm-low   forged votes on the norm: every answer is no, or yes; the rest is honest
label-flip, backdoor  poisoned data (`poisoning`); updates and bits are honest
targeted              poisoned data that erase one class
"""

PUBLISHED = ("ones", "flip")
CRAFTED = (
    "directed",
    "directed-stealth",
    "scaled",
    "inner-product",
    "little",
    "sybils",
    "adaptive",
    "mirror",
    "cancel",
    "decoys",
    "sleepers",
    "rotating",
    "two-coalitions",
    "fresh-identities",
)
FRESH = "fresh-identities"
FORGED_NORMS = ("norm-high", "norm-low")
POISONING = ("label-flip", "backdoor", "targeted")
ATTACKS = (*PUBLISHED, *CRAFTED, *FORGED_NORMS, *POISONING)
