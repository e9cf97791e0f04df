"""More signal from the same private bits: the radius finds itself, and errors are predicted."""
