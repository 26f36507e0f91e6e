"""Errors of S3, from a proxy before a real HTTP server, while a training saves there and is killed."""

import functools
import itertools

from tests.chaos.scene import Injury, Scene, Training


def fails(kind: str, scene: Scene) -> tuple[Training, Injury]:
    """Some requests in a row fail, then one of three while the training runs. In between the training is killed."""
    training = scene.train("s3")
    training.wait_for_checkpoint()
    scene.some_step(training, 6, 12)
    turn, streak = scene.rng.randrange(3), scene.rng.randint(3, 8)
    numbers = itertools.count(1)

    def fault(method: str, path: str, number: int) -> str | None:
        request_number = next(numbers)
        return kind if request_number <= streak or request_number % 3 == turn else None

    with scene.s3_fault(training.place().path, fault):
        scene.some_step(training, training.step() + 1, training.step() + 6)
        injury = training.wound()
        training.finish()
    assert next(numbers) > streak
    return training, injury


KINDS = {"s3_500": "500", "s3_503": "503", "s3_slow": "slow", "s3_cut_off": "cut off", "s3_lost": "answer lost"}

FAULTS = {name: functools.partial(fails, kind) for name, kind in KINDS.items()}
