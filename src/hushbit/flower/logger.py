"""Flower's logger, by its name: Flower exports no function for it that all versions have."""

import logging

log = logging.getLogger("flwr").log
