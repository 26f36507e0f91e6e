"""S3 that fails as S3 does, through a proxy before a real HTTP server, while a training saves there and is killed."""

from __future__ import annotations

import functools

from tests.chaos.scene import Injury, Scene, Training


def fails(kind: str, scene: Scene) -> tuple[Training, Injury]:
    """Some requests in a row fail, then one of three for as long as the training runs; in between it is killed."""
    training = scene.train("s3")
    training.wait_for_checkpoint()
    scene.some_step(training, 6, 12)
    start, turn, streak = scene.s3.number, scene.rng.randrange(3), scene.rng.randint(3, 8)
    scene.s3.fault = lambda method, path, number: kind if number <= start + streak or number % 3 == turn else None
    try:
        scene.some_step(training, training.step() + 1, training.step() + 6)
        injury = training.wound()
        training.finish()
        assert scene.s3.number > start + streak
    finally:
        scene.s3.fault = lambda method, path, number: None
    return training, injury


KINDS = {"s3_500": "500", "s3_503": "503", "s3_slow": "slow", "s3_cut_off": "cut off", "s3_lost": "answer lost"}

FAULTS = {name: functools.partial(fails, kind) for name, kind in KINDS.items()}
