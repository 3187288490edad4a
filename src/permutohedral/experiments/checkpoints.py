"""Checkpoints of a training: written whole or not at all, read without running code from the file."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.plugins.io import CheckpointIO

from permutohedral.errors import StorageError
from permutohedral.reporting.atomic import replacing


class WholeCheckpoints(CheckpointIO):
    """How lightning reads and writes checkpoints here.

    By default it writes to a temporary folder, which may lie on another disk, from where a file cannot be moved
    atomically; and it loads any object that a file names.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        # serialized in memory first, since torch does not say why a file cannot be written
        content = io.BytesIO()
        torch.save(checkpoint, content)
        with replacing(Path(path)) as partial:
            partial.write_bytes(content.getbuffer())

    def load_checkpoint(self, path: str | Path, *_: Any, **__: Any) -> dict[str, Any]:
        return read_checkpoint(Path(path))

    def remove_checkpoint(self, path: str | Path) -> None:
        Path(path).unlink(missing_ok=True)


def checkpoint_folder(config: Any, output: Path, name: str) -> Path:
    """The folder for the checkpoints of this configuration with any number of steps: a training can be extended.

    Args:
        config: a dataclass with `training`, settings with `steps` or None.
        output: of the run.
        name: of the row, with its seed where there are several.
    """
    content = asdict(config)
    content["training"] = {key: value for key, value in (content["training"] or {}).items() if key != "steps"}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
    return output / "checkpoints" / f"{name}-{digest}"


def read_checkpoint(path: Path) -> dict[str, Any]:
    """All that a checkpoint holds, on the processor. Only tensors and plain data are read, no other objects.

    Raises:
        StorageError: the file cannot be read, is damaged, or is no checkpoint.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        int(checkpoint["global_step"])
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, error) from error
    except (pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error) from error
    content: dict[str, Any] = checkpoint
    return content


def _unreadable(path: Path, error: Exception) -> StorageError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return StorageError(
        f"the checkpoint {path} is damaged or no checkpoint: {reason}. It was left as it is; put a whole one in its "
        "place, or delete it to train this row from the start"
    )
