"""Error and CPU time of EDEN in its authors' package `srrcomp`; runs in its own environment.

python eden_worker.py VECTORS.npy BITS THREADS   ->   one JSON line (see peers_compression.py)
"""

import importlib.metadata
import json
import sys
import time

import numpy as np
import srrcomp
import torch


def main():
    """Compress and decompress every vector with its own seed; print the error of the mean."""
    rows = np.load(sys.argv[1])
    bits, threads = int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    eden = srrcomp.Eden()
    vectors = torch.from_numpy(rows.astype(np.float32))
    eden.decompress(eden.compress(vectors[0], bits, 0))
    start = time.process_time()
    decoded, words = np.zeros(rows.shape[1]), 0
    for number, vector in enumerate(vectors):
        message = eden.compress(vector, bits, 1000 + number)
        words += sum(part["packed_bins"].numel() + 1 for part in message)
        decoded += eden.decompress(message).numpy()
    seconds = time.process_time() - start
    gap = ((decoded / len(rows) - rows.mean(axis=0)) ** 2).sum()
    print(
        json.dumps(
            {
                "nmse": float(gap / (rows**2).sum(axis=1).mean()),
                "cpu": seconds,
                "bits": 32 * words / rows.size,
                "version": f"srrcomp {importlib.metadata.version('srrcomp')}, "
                f"torch {torch.__version__}",
            }
        )
    )


main()
