"""Files of a stored run that other programs read: weights and metrics, without hushbit.

The suffix selects the format: .safetensors or .pt for weights, .jsonl, .csv or .parquet for
metrics. The checkpoint of the run is enough; nothing is trained and no data set is read.
"""

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hushbit.errors import DamagedFile, InvalidInput
from hushbit.wire.files import write_atomic, write_text

if TYPE_CHECKING:
    from torch import Tensor

    from hushbit.lab.sim.image_task import ImageTask
    from hushbit.lab.sim.run import RunRecord
    from hushbit.store.run_folder import Checkpoint

WEIGHTS_FORMATS = (".safetensors", ".pt")
METRICS_FORMATS = (".jsonl", ".csv", ".parquet")
IMAGES = {
    "digits": ((1, 8, 8), 10),
    "mnist": ((1, 28, 28), 10),
    "fashion-mnist": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
}
"""Shape of the images and number of classes of each data set."""


def check_format(path: Path, formats: tuple[str, ...]) -> str:
    """The suffix of a file, if it is one of the formats."""
    if path.suffix not in formats:
        raise InvalidInput(
            f"the file {path.name} must end in one of {', '.join(formats)}; the suffix selects the "
            "format"
        )
    return path.suffix


def state_dict(folder: str | Path) -> "dict[str, Tensor]":
    """The tensors of the model after the last complete round, by name.

    A run with `average_weights` gives the average that it evaluated. The weights of an own task are
    those that the finished run has stored.
    """
    import numpy as np

    record, kept = _stored(folder)
    if record.settings().task is not None:
        return _of_own_task(record)
    task = _image_task(record)
    average = kept.groups.get("average", {}).get("average")
    params = kept.groups["model"]["params"] if average is None else average.astype(np.float32)
    if params.shape != (task.dim,):
        raise DamagedFile(
            f"the checkpoint in {record.folder} has {params.size} weights, the model of its "
            f"configuration has {task.dim}"
        )
    return task.state_dict(params)


def write_weights(folder: str | Path, path: str | Path) -> None:
    """Write the state dict of a stored run to a .safetensors or .pt file.

    The metadata of a safetensors file name the model, the data set and the scaling of inputs.
    """
    import torch

    from hushbit.lab.sim.run import save_weights

    target = Path(path)
    form = check_format(target, WEIGHTS_FORMATS)
    tensors = state_dict(folder)
    if form == ".pt":
        write_atomic(target, lambda file: torch.save(tensors, file))
    else:
        save_weights(target, tensors, _metadata(folder))


def write_metrics(folder: str | Path, path: str | Path) -> None:
    """Write one row per complete round of a stored run to a .jsonl, .csv or .parquet file.

    JSON has no infinity: .jsonl holds the texts "inf", "-inf" and "nan" instead.
    """
    target = Path(path)
    form = check_format(target, METRICS_FORMATS)
    record, kept = _stored(folder)
    rows = record.rows()[: kept.round]
    if form == ".jsonl":
        write_text(target, "".join(json.dumps(row) + "\n" for row in rows))
    elif form == ".csv":
        write_text(target, _csv(rows))
    else:
        record.write_parquet(rows, target)


def complete_rounds(folder: str | Path) -> int:
    """The number of complete rounds of a stored run."""
    return _stored(folder)[1].round


def _stored(folder: str | Path) -> "tuple[RunRecord, Checkpoint]":
    from hushbit.lab.sim.run import RunRecord

    record = RunRecord(folder)
    record.settings()  # refuses a folder without a run
    kept = record.read_checkpoint()
    if kept is None:
        raise InvalidInput(f"no round of the run in {folder} is complete: there is nothing yet")
    return record, kept


def _image_task(record: "RunRecord") -> "ImageTask":
    from hushbit.lab.sim.image_task import task_without_data
    from hushbit.lab.sim.models import build_model

    settings = record.settings()
    shape, classes = IMAGES[settings.dataset]
    return task_without_data(build_model(settings.model, shape, classes, settings.weights_file))


def _of_own_task(record: "RunRecord") -> "dict[str, Tensor]":
    from safetensors.torch import load_file

    from hushbit.lab.sim.run import WEIGHTS

    path = record.folder / WEIGHTS
    if not path.exists():
        raise InvalidInput(f"the run in {record.folder} is not finished: resume it first")
    tensors: dict[str, Tensor] = load_file(path)
    return tensors


def _metadata(folder: str | Path) -> dict[str, str]:
    from hushbit.lab.sim.models import PIXEL_RANGES

    record, kept = _stored(folder)
    settings = record.settings()
    names = {"model": settings.model, "dataset": settings.dataset, "round": str(kept.round)}
    if settings.task is None:
        center, scale = PIXEL_RANGES[settings.pixels]
        names["inputs"] = f"(byte - {center:g}) / {scale:g}"
    return {"format": "pt", **names}


def _csv(rows: list[dict[str, Any]]) -> str:
    """The rows with a header; None is an empty cell."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
