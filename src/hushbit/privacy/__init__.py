"""What is guaranteed, what has been spent, and how to check it.

guarantee     one mechanism's promise per bit, per message and per run
composition   the rules that prove it: exact (bits, mixed), zcdp, renyi, shuffling, events
calibration   from a budget for a whole message to a mechanism
planning      what a budget buys: signal-to-noise ratio, bytes, users needed
ledger        what each user has spent, charged before a ballot leaves (cost, ledger_file)
anonymity     k, and how soon repeated rounds undo it
audit         attacks on the real encoder (targets), with exact confidence bounds (intervals)
"""
