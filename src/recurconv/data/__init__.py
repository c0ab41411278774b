"""Images on their way into a network: CIFAR, a user's own folders, pictures and noise."""

from recurconv.data.augment import Augment, ImageSet, iteration_generator
from recurconv.data.cifar import ImageArrays, load_cifar
from recurconv.data.folder import PictureFolder, load_folder

__all__ = [
    "Augment",
    "ImageArrays",
    "ImageSet",
    "PictureFolder",
    "iteration_generator",
    "load_cifar",
    "load_folder",
]
