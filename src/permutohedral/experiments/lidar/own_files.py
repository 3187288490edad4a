"""Training on people's own classified point clouds: what `permutohedral train-points` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytorch_lightning as lightning
import torch
from torch.utils.data import DataLoader

from permutohedral.clouds.classify import classify_points
from permutohedral.clouds.scenes import UNKNOWN, Cropping, Scene, make_scene
from permutohedral.clouds.weights import STANDARD_CLASSES, Description, PointClass, load_segmenter, save_segmenter
from permutohedral.data.cloud_files import read_cloud, reader_of
from permutohedral.errors import InputError
from permutohedral.experiments.batches import StepNumbers
from permutohedral.experiments.checkpoints import checkpoint_folder
from permutohedral.experiments.lidar.run import CropsTask
from permutohedral.experiments.training import RunOptions, TrainingSettings, fit, steps_done

# of the rows of `permutohedral reproduce lidar`
_OPTIONS = {"channels": [16, 24, 40, 48], "step": 0.7, "between": "linear"}


@dataclass(frozen=True)
class OwnTraining:
    """How to train on files.

    Attributes:
        classes: the numbers of each class by its name; default: ground, vegetation and building.
        steps: updates of the weights.
        crops: in a step.
        start: a file of `save_segmenter` whose weights to begin with.
        seed: of weights and crops.
        cropping: how crops are cut out and varied.
    """

    classes: Mapping[str, tuple[int, ...]] | None = None
    steps: int = 1500
    crops: int = 8
    start: Path | None = None
    seed: int = 0
    cropping: Cropping = field(default_factory=Cropping)

    def describe(self) -> Description:
        """The network that is trained."""
        if self.classes is None:
            return Description("unet", _OPTIONS, STANDARD_CLASSES)
        return Description("unet", _OPTIONS, tuple(PointClass(name, tuple(n)) for name, n in self.classes.items()))

    def settings(self) -> TrainingSettings:
        """How its weights are changed."""
        return TrainingSettings(
            self.steps, self.crops, "adam", 0.003, weight_decay=0.001, schedule="cosine", warmup=50, gradient_clip=1.0
        )


@dataclass(frozen=True)
class _Identity:
    """What makes a training the same, so that it can be resumed."""

    files: tuple[str, ...]
    classes: tuple[PointClass, ...]
    seed: int
    training: TrainingSettings


def train_on_files(sources: Sequence[Path], output: Path, training: OwnTraining, options: RunOptions) -> float:
    """Train a network on classified files and write it.

    Args:
        sources: files that `read_cloud` reads.
        output: the file of weights.
        training: how.
        options: where; checkpoints go to its output folder.

    Returns:
        The share of the classified points of all files that the network gets right.

    Raises:
        InputError: a file has no points of the classes, or a class no points.
        DataError: a file cannot be read.
        StorageError: a file cannot be written.
    """
    if output.suffix != ".safetensors":
        raise InputError(f"the network {output} must be called something.safetensors")
    for source in sources:
        reader_of(source)
    description, settings = training.describe(), training.settings()
    lightning.seed_everything(training.seed, workers=True, verbose=False)
    if training.start is None:
        network = description.build()
    else:
        network, other = load_segmenter(training.start)
        if len(other.classes) != len(description.classes):
            raise InputError(
                f"{training.start} tells {len(other.classes)} classes apart, not {len(description.classes)}"
            )
        description = replace(other, classes=description.classes)
    scenes = read_scenes(sources, description)
    network.train().to(options.device)
    identity = _Identity(tuple(map(str, sources)), description.classes, training.seed, settings)
    checkpoints = checkpoint_folder(identity, options.output, output.stem)
    numbers = StepNumbers(training.steps, first=steps_done(options, checkpoints))
    task = CropsTask(network, settings, scenes, tuple(scenes), training.cropping, training.seed)
    fit(task, DataLoader(numbers, batch_size=None), options, checkpoints)
    network = network.to(options.device).eval()
    save_segmenter(network, description, output)
    right = counted = 0
    for scene in scenes.values():
        assert scene.labels is not None
        known = scene.labels != UNKNOWN
        right += int((classify_points(network, scene, options.device) == scene.labels)[known].sum())
        counted += int(known.sum())
    return right / counted


def read_scenes(sources: Sequence[Path], description: Description) -> dict[str, Scene]:
    """The scenes of files, by name of the file, as a network reads them.

    Raises:
        InputError: a file has no points of the classes, or a class no points.
    """
    classes = description.classes
    table = torch.full((256,), UNKNOWN, dtype=torch.int64)
    for place, each in enumerate(classes):
        for number in each.numbers:
            if table[number] != UNKNOWN:
                raise InputError(f"the number {number} belongs to two classes")
            table[number] = place
    scenes, found = {}, torch.zeros(len(classes), dtype=torch.int64)
    for source in sources:
        cloud = read_cloud(source)
        if cloud.labels is None:
            raise InputError(f"{source} has no classes, or some that are no whole numbers from 0 to 255")
        labels = table[cloud.labels.long()]
        if not bool((labels != UNKNOWN).any()):
            raise InputError(f"{source} has no points of the classes {', '.join(each.name for each in classes)}")
        found += torch.bincount(labels[labels != UNKNOWN], minlength=len(classes))
        scenes[str(source)] = make_scene(cloud.positions, labels, description.above)
    missing = [each.name for each, number in zip(classes, found.tolist(), strict=True) if not number]
    if missing:
        raise InputError(f"no file has points of the class {missing[0]}; leave it out, or name its numbers by --class")
    return scenes
