"""The folder in which wrong predictions are kept, which cannot fill the disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from reconciler.adapters.writing import PRIVATE, make_folder, write_file
from reconciler.watch.episodes.episode import Episode, encode_episode

EPISODES_MAX: Final = 200
"""How many files the folder may have; each contains the cluster, and whoever may create pods can
make predictions wrong."""


def episode_saver(
    folder: str, warn: Callable[[str], None], encode: Callable[[Episode], bytes] = encode_episode
) -> Callable[[Episode], str]:
    """Make the folder, and return what saves an episode there and returns its file.

    Once the folder is full nothing is saved, and the result is empty; ``warn`` is called once.

    Raises:
        UnreadableError: the folder cannot be made, or a link of a checkout leads to it.
    """
    make_folder(folder)
    warned = False

    def save(episode: Episode) -> str:
        nonlocal warned
        if len(os.listdir(folder)) >= EPISODES_MAX:
            if not warned:
                warn(f"{folder}: {EPISODES_MAX} episodes are saved; move some to save more of them")
            warned = True
            return ""
        path = os.path.join(folder, f"{episode['name']}.json.gz")
        write_file(path, encode(episode), mode=PRIVATE)
        return path

    return save
