"""Where a round's time goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Clock:
    """Wall and CPU seconds by phase; those of several workers add up."""

    wall: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what is done inside."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self._note(name, time.perf_counter() - wall, time.process_time() - cpu)

    def include(self, other: "Clock") -> None:
        """Add the seconds of another clock."""
        for name, wall in other.wall.items():
            self._note(name, wall, other.cpu[name])

    def _note(self, name: str, wall: float, cpu: float) -> None:
        self.wall[name] = self.wall.get(name, 0.0) + wall
        self.cpu[name] = self.cpu.get(name, 0.0) + cpu
