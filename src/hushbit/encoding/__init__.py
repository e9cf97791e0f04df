"""From a quantized block to a private bit: words, randomized response, stages, rotation."""
