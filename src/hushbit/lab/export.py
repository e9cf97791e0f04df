"""Files of a stored run that other programs read: weights and metrics, without hushbit.

The suffix selects the format: .safetensors or .pt for weights, .jsonl, .csv or .parquet for
metrics. The checkpoint of the run is enough; nothing is trained and no data set is read.
"""

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hushbit.errors import DamagedFile, InvalidInput, MissingExtra
from hushbit.wire.files import write_atomic, write_text

if TYPE_CHECKING:
    from torch import Tensor

    from hushbit.lab.sim.models import Model
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

    A run with `average_weights` gives the average that it evaluated. Normalisation statistics of a
    weights file are included under torchvision's names.
    """
    import numpy as np
    import torch

    record, kept = _stored(folder)
    model = _model(record)
    average = kept.groups.get("average", {}).get("average")
    params = kept.groups["model"]["params"] if average is None else average.astype(np.float32)
    if params.shape != (model.dim,):
        raise DamagedFile(
            f"the checkpoint in {record.folder} has {params.size} weights, the model of its "
            f"configuration has {model.dim}"
        )
    named = {name: one.clone() for name, one in model.tensors(torch.tensor(params)).items()}
    for norm, (mean, variance) in (model.statistics or {}).items():
        named |= {f"{norm}.running_mean": mean, f"{norm}.running_var": variance}
    return named


def write_weights(folder: str | Path, path: str | Path) -> None:
    """Write the state dict of a stored run to a .safetensors or .pt file.

    The metadata of a safetensors file name the model, the data set and the scaling of inputs.
    """
    target = Path(path)
    if check_format(target, WEIGHTS_FORMATS) == ".pt":
        import torch

        tensors = state_dict(folder)
        write_atomic(target, lambda file: torch.save(tensors, file))
        return
    try:
        from safetensors.torch import save
    except ImportError as error:
        raise MissingExtra("safetensors is not installed: pip install 'hushbit[lab]'") from error
    content = save(state_dict(folder), _metadata(folder))
    write_atomic(target, lambda file: file.write(content))


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


def _model(record: "RunRecord") -> "Model":
    from hushbit.lab.sim.models import build_model

    settings = record.settings()
    shape, classes = IMAGES[settings.dataset]
    return build_model(settings.model, shape, classes, settings.weights_file)


def _metadata(folder: str | Path) -> dict[str, str]:
    from hushbit.lab.sim.models import PIXEL_RANGES

    record, kept = _stored(folder)
    settings = record.settings()
    center, scale = PIXEL_RANGES[settings.pixels]
    return {
        "format": "pt",
        "model": settings.model,
        "dataset": settings.dataset,
        "inputs": f"(byte - {center:g}) / {scale:g}",
        "round": str(kept.round),
    }


def _csv(rows: list[dict[str, Any]]) -> str:
    """The rows with a header; None is an empty cell."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
